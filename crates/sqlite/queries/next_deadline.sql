-- The next deadline of an execution that waits. 1 the time now
SELECT deadline_at FROM executions
WHERE deadline_at IS NOT NULL AND status IN (0, 1, 3) AND deadline_at > ?1
ORDER BY deadline_at LIMIT 1
