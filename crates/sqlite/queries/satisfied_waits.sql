-- Suspended executions that wait for an event that has happened, and have not been woken.
SELECT waits.execution FROM waits
CROSS JOIN executions AS child ON child.key = waits.subject
CROSS JOIN executions AS waiting ON waiting.key = waits.execution
WHERE waits.kind = 1 AND child.status >= 4 AND waiting.status = 3
UNION
SELECT waits.execution FROM waits
CROSS JOIN executions AS waiting ON waiting.key = waits.execution
WHERE waits.kind = 2 AND waiting.status = 3
    AND EXISTS (SELECT 1 FROM messages WHERE messages.execution = waits.subject AND messages.topic = waits.name)
