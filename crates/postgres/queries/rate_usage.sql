-- Returns the starts that count for rates. $1: queues, $2: whether the rate is of a key, $3: the keys, $4: the time after
-- which starts count.
SELECT u.n, coalesce(r.starts, 0)::bigint, r.first_at, r.last_at
FROM unnest($1::text[], $2::boolean[], $3::text[], $4::timestamptz[]) WITH ORDINALITY
     AS u (queue, is_key, queue_key, after, n)
CROSS JOIN LATERAL (SELECT sum(r.starts) AS starts, min(r.at) AS first_at, max(r.at) AS last_at
                    FROM rates AS r
                    WHERE r.queue = u.queue AND r.is_key = u.is_key AND r.queue_key = u.queue_key AND r.at > u.after) AS r
ORDER BY u.n
