-- Ends a batch. 1 key, 2 ended_at
UPDATE executions
SET status = 4, outcome = NULL, ended_at = ?2, armed = NULL, dedup_id = NULL
WHERE key = ?1 AND status = 3
