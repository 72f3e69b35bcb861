-- Executions that wait for a worker, by workflow and version of the code. 1 the time now, 2 maximum number of counted
-- executions
SELECT workflow, app_version, count(*) FROM (
    SELECT workflow, app_version FROM ready
    UNION ALL
    SELECT workflow, app_version FROM quarantine
    UNION ALL
    SELECT executions.workflow, executions.app_version
    FROM timers CROSS JOIN executions ON executions.key = timers.execution
    WHERE timers.due_at <= ?1 AND executions.status IN (0, 3)
    LIMIT ?2
)
GROUP BY workflow, app_version ORDER BY workflow, app_version
