-- Assigns a slot to a running execution of a queue, unless it has one. 1 queue, 2 execution, 3 worker_id
INSERT INTO slots (queue, queue_key, execution, worker_id)
SELECT queue, coalesce(queue_key, ''), key, owner FROM executions
WHERE key = ?2 AND owner = ?3 AND status = 2 AND queue = ?1
ON CONFLICT DO NOTHING
