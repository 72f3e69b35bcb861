-- Executions of a workflow and version in quarantine whose trial is due, the earliest trial first. 1 until, 2 workflow, 3
-- app_version
SELECT quarantine.due_at, quarantine.execution, executions.queue, executions.queue_key
FROM quarantine CROSS JOIN executions ON executions.key = quarantine.execution
WHERE quarantine.workflow = ?2 AND quarantine.app_version = ?3 AND quarantine.due_at <= ?1
ORDER BY quarantine.due_at, quarantine.execution
