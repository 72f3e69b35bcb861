-- Executions in quarantine whose trial is due, the earliest trial first. 1 until, 2 version of the code, NULL for any
SELECT
    quarantine.due_at, quarantine.execution, quarantine.workflow, executions.queue, executions.queue_key
FROM quarantine CROSS JOIN executions ON executions.key = quarantine.execution
WHERE quarantine.due_at <= ?1
    AND (quarantine.app_version = ?2 OR quarantine.app_version IS NULL OR ?2 IS NULL)
ORDER BY quarantine.due_at, quarantine.execution
