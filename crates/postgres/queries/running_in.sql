-- What runs of a queue gets slots where it has none. $1: the queue, whose row is locked. What is not in the index of
-- owners is found as in owned.sql. A flush that ends an execution holds nothing but that row: so each row is locked, which
-- waits for such a flush, and is looked at again. What has ended meanwhile has no slot, and gets none.
WITH found AS MATERIALIZED (
    SELECT e.key
    FROM executions AS e
    WHERE e.owner IS NOT NULL AND e.status = 2 AND e.queue = $1::text
  UNION
    SELECT e.key
    FROM workers AS w
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key >= w.from_key AND e.key < w.to_key AND e.started_by = w.worker_id
                          AND e.status = 2 AND e.queue = $1::text
                        OFFSET 0) AS e
  UNION
    SELECT e.key
    FROM claims AS c
    CROSS JOIN unnest(c.executions) AS u (key)
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = u.key AND e.started_by = c.worker_id AND e.status = 2 AND e.queue = $1::text
                        OFFSET 0) AS e
), running AS MATERIALIZED (
    SELECT e.worker, e.key, e.queue_key
    FROM (SELECT f.key FROM found AS f ORDER BY f.key OFFSET 0) AS f
    CROSS JOIN LATERAL (SELECT coalesce(e.owner, e.started_by) AS worker, e.key, e.queue_key
                        FROM executions AS e
                        WHERE e.key = f.key AND e.status = 2 AND e.queue = $1::text
                        OFFSET 0 FOR SHARE) AS e
)
INSERT INTO slots (worker_id, execution, queue, queue_key)
SELECT r.worker, r.key, $1::text, coalesce(r.queue_key, '') FROM running AS r
ON CONFLICT (queue, queue_key, execution) DO UPDATE SET worker_id = excluded.worker_id
WHERE slots.worker_id <> excluded.worker_id
