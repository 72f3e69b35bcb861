-- The owner changes the state of an execution and releases its ownership. 1 key, 2 owner, 3 status, 4 is_paused, 5
-- outcome, 6 armed
UPDATE OR FAIL executions
SET status = ?3, is_paused = ?4, outcome = ?5, armed = ?6, owner = NULL
WHERE key = ?1 AND owner = ?2 AND status = 2
