-- Executions that wait although their deadline has passed. 1 the time now, 2 limit
SELECT key FROM executions
WHERE deadline_at IS NOT NULL AND status IN (0, 1, 3) AND deadline_at <= ?1
ORDER BY deadline_at, key LIMIT ?2
