-- Returns the queue keys that have ready executions of some routes, found by hopping from one key to the next along the
-- index, with the numbers of their running executions. $1: the queue of each route, $2: the key from which its keys are
-- returned, $3: the key up to which they are returned, null for no end, $4: the maximum number of running executions of a
-- key, null for no limit, $5: the maximum number of keys of each route, $6: whether to return only keys that have woken
-- executions, $7: the routes, $8: the number of keys below their limit after which no further key of the route is
-- returned. A key of several routes is returned for each.
SELECT q.n, k.queue_key, k.running
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $6::boolean[], $7::text[], $8::bigint[]) WITH ORDINALITY
     AS q (queue, first, last, key_concurrency, is_woken, route, wanted, n)
CROSS JOIN LATERAL (
    WITH RECURSIVE hops (queue_key, running, n, free) AS (
        SELECT k.queue_key, c.running, 1, (c.running IS NULL OR c.running < q.key_concurrency)::integer
        FROM (SELECT CASE WHEN q.is_woken
                          THEN (SELECT r.queue_key FROM ready AS r
                                WHERE r.route = q.route AND r.queue_key >= q.first AND r.is_woken
                                ORDER BY r.queue_key LIMIT 1)
                          ELSE (SELECT r.queue_key FROM ready AS r
                                WHERE r.route = q.route AND r.queue_key >= q.first
                                ORDER BY r.queue_key LIMIT 1) END AS queue_key
              OFFSET 0) AS k
        CROSS JOIN LATERAL (
            SELECT CASE WHEN q.key_concurrency IS NOT NULL
                        THEN (SELECT count(*) FROM slots AS s
                              WHERE s.queue = q.queue AND s.queue_key = k.queue_key) END AS running
            OFFSET 0) AS c
      UNION ALL
        SELECT k.queue_key, c.running, h.n + 1, h.free + (c.running IS NULL OR c.running < q.key_concurrency)::integer
        FROM hops AS h
        CROSS JOIN LATERAL (
            SELECT CASE WHEN q.is_woken
                        THEN (SELECT r.queue_key FROM ready AS r
                              WHERE r.route = q.route AND r.queue_key > h.queue_key AND r.is_woken
                              ORDER BY r.queue_key LIMIT 1)
                        ELSE (SELECT r.queue_key FROM ready AS r
                              WHERE r.route = q.route AND r.queue_key > h.queue_key
                              ORDER BY r.queue_key LIMIT 1) END AS queue_key
            OFFSET 0) AS k
        CROSS JOIN LATERAL (
            SELECT CASE WHEN q.key_concurrency IS NOT NULL
                        THEN (SELECT count(*) FROM slots AS s
                              WHERE s.queue = q.queue AND s.queue_key = k.queue_key) END AS running
            OFFSET 0) AS c
        WHERE h.queue_key <= coalesce(q.last, h.queue_key) AND h.n < $5::integer AND h.free < q.wanted
    )
    SELECT h.queue_key, h.running, h.n FROM hops AS h WHERE h.queue_key <= coalesce(q.last, h.queue_key)
) AS k
ORDER BY q.n, k.n
