-- Deletes rows of `ready` whose execution cannot be claimed, among the first 1,000 rows of each queue key in each route.
-- No transaction should leave such rows. $1 and $2: routes and keys.
DELETE FROM ready
WHERE execution = ANY(ARRAY(
    SELECT r.execution
    FROM unnest($1::text[], $2::text[]) AS w (route, queue_key)
    CROSS JOIN LATERAL (SELECT r.execution
                        FROM ready AS r
                        WHERE r.route = w.route AND r.queue_key = w.queue_key
                        ORDER BY r.priority, r.seq
                        LIMIT 1000) AS r
    LEFT JOIN LATERAL (SELECT e.status, e.is_paused FROM executions AS e WHERE e.key = r.execution OFFSET 0) AS e ON true
    WHERE e.status IS NULL OR e.status <> 1 OR e.is_paused
    ORDER BY r.execution))
