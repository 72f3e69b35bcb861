-- Timers up to a time, after a position, with their executions. 1 due_at, 2 execution, 3 until, 4 limit
SELECT timers.due_at, timers.execution, executions.workflow, executions.app_version, executions.queue, executions.status
FROM timers CROSS JOIN executions ON executions.key = timers.execution
WHERE (timers.due_at, timers.execution) > (?1, ?2) AND timers.due_at <= ?3 AND executions.status IN (0, 3)
ORDER BY timers.due_at, timers.execution LIMIT ?4
