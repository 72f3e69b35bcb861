-- Ends an execution that does not run, with status cancelled. 1 key, 2 outcome, 3 ended_at
UPDATE executions
SET status = 6, is_paused = 0, outcome = ?2, ended_at = ?3, owner = NULL, armed = NULL, dedup_id = NULL
WHERE key = ?1
