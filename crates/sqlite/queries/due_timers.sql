-- Timers of a route up to a time, after a position, with the statuses of their executions. 1 route, 2 due_at, 3 execution,
-- 4 until, 5 limit
SELECT timers.due_at, timers.execution, executions.status
FROM timers CROSS JOIN executions ON executions.key = timers.execution
WHERE timers.route = ?1 AND (timers.due_at, timers.execution) > (?2, ?3) AND timers.due_at <= ?4
    AND executions.status IN (0, 3)
ORDER BY timers.due_at, timers.execution LIMIT ?5
