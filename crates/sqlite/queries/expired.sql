-- What waits although its deadline has passed. 1 now, 2 at most so many
SELECT key FROM executions
WHERE deadline_at IS NOT NULL AND status IN (0, 1, 3) AND deadline_at <= ?1
ORDER BY deadline_at, key LIMIT ?2
