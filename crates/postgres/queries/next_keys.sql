-- Returns the queue keys that have ready executions, found by hopping from one key to the next along the index. $1:
-- queues, $2: the key from which the keys of each queue are returned, $3: the key up to which they are returned, null for
-- no end, $4: whether to count the running executions of each key, $5: the maximum number of keys of each queue, $6:
-- whether to return only keys that have woken executions.
SELECT q.n, k.queue_key,
       CASE WHEN q.is_counted
            THEN (SELECT count(*) FROM slots AS s WHERE s.queue = q.queue AND s.queue_key = k.queue_key) END
FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[], $6::boolean[]) WITH ORDINALITY
     AS q (queue, first, last, is_counted, is_woken, n)
CROSS JOIN LATERAL (
    WITH RECURSIVE hops (queue_key, n) AS (
        SELECT CASE WHEN q.is_woken
                    THEN (SELECT r.queue_key FROM ready AS r
                          WHERE r.queue = q.queue AND r.queue_key >= q.first AND r.is_woken
                          ORDER BY r.queue_key LIMIT 1)
                    ELSE (SELECT r.queue_key FROM ready AS r
                          WHERE r.queue = q.queue AND r.queue_key >= q.first ORDER BY r.queue_key LIMIT 1) END, 1
      UNION ALL
        SELECT CASE WHEN q.is_woken
                    THEN (SELECT r.queue_key FROM ready AS r
                          WHERE r.queue = q.queue AND r.queue_key > h.queue_key AND r.is_woken
                          ORDER BY r.queue_key LIMIT 1)
                    ELSE (SELECT r.queue_key FROM ready AS r
                          WHERE r.queue = q.queue AND r.queue_key > h.queue_key ORDER BY r.queue_key LIMIT 1) END, h.n + 1
        FROM hops AS h
        WHERE h.queue_key <= coalesce(q.last, h.queue_key) AND h.n < $5::integer
    )
    SELECT h.queue_key, h.n FROM hops AS h WHERE h.queue_key <= coalesce(q.last, h.queue_key)
) AS k
ORDER BY q.n, k.n
