-- The owner finishes an execution. 1 key, 2 owner, 3 status, 4 outcome, 5 ended_at
UPDATE OR FAIL executions
SET status = ?3, outcome = ?4, ended_at = ?5, owner = NULL, armed = NULL, dedup_id = NULL
WHERE key = ?1 AND owner = ?2 AND status = 2
