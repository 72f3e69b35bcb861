-- Suspended executions that wait for an event that has happened, and have not been woken.
SELECT DISTINCT waits.execution FROM waits
CROSS JOIN executions AS waiting ON waiting.key = waits.execution
WHERE waiting.status = 3 AND CASE waits.kind
    WHEN 1 THEN EXISTS (SELECT 1 FROM executions AS child WHERE child.key = waits.subject AND child.status >= 4)
    WHEN 2 THEN EXISTS (SELECT 1 FROM messages WHERE messages.execution = waits.subject AND messages.topic = waits.name)
END
