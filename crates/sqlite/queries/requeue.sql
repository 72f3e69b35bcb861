-- Requeues some executions of an owner, and returns their recovery state. 1 owner, 2 limit, 3 increment of recoveries
UPDATE executions SET status = 1, owner = NULL, recoveries = recoveries + ?3
WHERE key IN (SELECT key FROM executions WHERE owner = ?1 LIMIT ?2)
RETURNING key, strikes, progress, is_alone, queue, queue_key
