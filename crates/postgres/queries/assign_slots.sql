-- Gives a slot to each running execution of a queue. $1: the queue; its row is locked, so that no further execution
-- begins. The running executions are found by the assignments of all workers. Each row is locked and checked again: a
-- flush that ends the execution then waits, and deletes the slot. A row that another transaction has locked is skipped,
-- because that transaction may wait for another of these rows. Returns one of the found executions that got no slot,
-- null if all got one. Such an execution no longer runs, or another transaction is changing it.
WITH found AS MATERIALIZED (
    SELECT DISTINCT e.key
    FROM assignments AS a
    CROSS JOIN unnest(a.executions) AS u (key)
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = u.key AND e.owner = a.worker_id AND e.status = 2 AND e.queue = $1::text
                        OFFSET 0) AS e
), running AS MATERIALIZED (
    SELECT f.key, e.worker, e.queue_key
    FROM (SELECT f.key FROM found AS f ORDER BY f.key OFFSET 0) AS f
    LEFT JOIN LATERAL (SELECT e.owner AS worker, coalesce(e.queue_key, '') AS queue_key
                       FROM executions AS e
                       WHERE e.key = f.key AND e.status = 2 AND e.queue = $1::text
                       OFFSET 0 FOR SHARE SKIP LOCKED) AS e ON true
), given AS (
    INSERT INTO slots (worker_id, execution, queue, queue_key)
    SELECT r.worker, r.key, $1::text, r.queue_key FROM running AS r WHERE r.worker IS NOT NULL
    ON CONFLICT (queue, queue_key, execution) DO UPDATE SET worker_id = excluded.worker_id
    WHERE slots.worker_id <> excluded.worker_id
)
SELECT (SELECT r.key FROM running AS r WHERE r.worker IS NULL LIMIT 1)
