-- Returns the executions that a worker runs. Some are in the index of owners. The others are in the worker's window or in
-- the rows of its claims: see ownership.rs. $1: the worker.
SELECT key FROM executions WHERE owner = $1::bigint AND status = 2
UNION
SELECT e.key
FROM workers AS w
CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                    WHERE e.key >= w.from_key AND e.key < w.to_key AND e.started_by = w.worker_id AND e.status = 2
                    OFFSET 0) AS e
WHERE w.worker_id = $1::bigint
UNION
SELECT e.key
FROM claims AS c
CROSS JOIN unnest(c.executions) AS u (key)
CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                    WHERE e.key = u.key AND e.started_by = c.worker_id AND e.status = 2
                    OFFSET 0) AS e
WHERE c.worker_id = $1::bigint
