-- Suspended executions of which a wake condition holds, other than the timer, and that have not been woken.
SELECT DISTINCT waits.execution FROM waits
CROSS JOIN executions AS waiting ON waiting.key = waits.execution
WHERE waiting.status = 3 AND CASE waits.kind
    WHEN 1 THEN EXISTS (SELECT 1 FROM executions AS child WHERE child.key = waits.subject AND child.status >= 4)
    WHEN 2 THEN EXISTS (SELECT 1 FROM messages WHERE messages.execution = waits.subject AND messages.topic = waits.name)
    WHEN 3 THEN EXISTS (SELECT 1 FROM executions AS setter WHERE setter.key = waits.subject AND setter.status >= 4)
        OR EXISTS (
            SELECT 1 FROM checkpoints
            WHERE checkpoints.execution = waits.subject AND checkpoints.kind = 9 AND checkpoints.step_name = waits.name
        )
END
