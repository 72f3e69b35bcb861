-- The same of an execution without a dedup_id: the index of those is not opened. Parameters as in move_ended.sql
UPDATE OR FAIL executions
SET status = ?3, outcome = ?4, ended_at = ?5, owner = NULL, armed = NULL
WHERE key = ?1 AND owner = ?2 AND status = 2 AND dedup_id IS NULL
