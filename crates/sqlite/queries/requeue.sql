-- Requeues an execution that a worker runs, and returns its recovery state. 1 key, 2 worker_id, 3 increment of recoveries
UPDATE executions SET status = 1, owner = NULL, recoveries = recoveries + ?3
WHERE key = ?1 AND owner = ?2 AND status = 2
RETURNING strikes, progress, is_alone, queue, queue_key
