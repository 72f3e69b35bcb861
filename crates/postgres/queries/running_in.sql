-- What runs of a queue gets slots where it has none. $1: the queue, whose row is locked.
INSERT INTO slots (worker_id, execution, queue, queue_key)
SELECT e.owner, e.key, e.queue, coalesce(e.queue_key, '')
FROM executions AS e
WHERE e.owner IS NOT NULL AND e.status = 2 AND e.queue = $1::text
ON CONFLICT DO NOTHING
