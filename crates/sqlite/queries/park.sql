-- Parks an execution that does not run. 1 key, 2 outcome
UPDATE executions SET status = 1, is_paused = 1, outcome = ?2 WHERE key = ?1
