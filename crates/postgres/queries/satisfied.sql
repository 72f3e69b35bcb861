-- Executions that wait for a child which has ended.
SELECT DISTINCT w.execution
FROM waits AS w
JOIN executions AS c ON c.key = w.child
JOIN executions AS e ON e.key = w.execution
WHERE c.status >= 4 AND e.status = 3
LIMIT 5000
