-- Queues a scheduled execution whose time has come. A debounced execution frees its dedup_id for the next start. 1 key
UPDATE executions SET status = 1, dedup_id = iif(substr(dedup_id, 1, 1) = char(1), NULL, dedup_id)
WHERE key = ?1 AND status = 0
