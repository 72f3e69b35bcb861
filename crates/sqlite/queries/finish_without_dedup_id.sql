-- The owner finishes an execution without a dedup_id, so that the index of dedup_ids is not opened. Parameters as in
-- finish.sql
UPDATE OR FAIL executions
SET status = ?3, outcome = ?4, ended_at = ?5, owner = NULL, armed = NULL
WHERE key = ?1 AND owner = ?2 AND status = 2 AND dedup_id IS NULL
