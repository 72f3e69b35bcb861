-- Assigns slots to running executions of a queue that have none. 1 queue
INSERT INTO slots (queue, queue_key, execution, worker_id)
SELECT queue, coalesce(queue_key, ''), key, owner FROM executions
WHERE owner IS NOT NULL AND queue = ?1
ON CONFLICT DO NOTHING
