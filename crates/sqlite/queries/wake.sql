-- Queues a suspended execution if its timer is due or a wake condition holds. 1 key, 2 the time now
UPDATE executions SET status = 1
WHERE key = ?1 AND status = 3 AND (
    EXISTS (SELECT 1 FROM timers WHERE execution = ?1 AND due_at <= ?2)
    OR EXISTS (
        SELECT 1 FROM waits CROSS JOIN executions AS child ON child.key = waits.subject
        WHERE waits.execution = ?1 AND waits.kind = 1 AND child.status >= 4
    )
    OR EXISTS (
        SELECT 1 FROM waits CROSS JOIN messages ON messages.execution = waits.subject AND messages.topic = waits.name
        WHERE waits.execution = ?1 AND waits.kind = 2
    )
    OR EXISTS (
        SELECT 1 FROM waits
        WHERE waits.execution = ?1 AND waits.kind = 3 AND (
            EXISTS (SELECT 1 FROM executions AS setter WHERE setter.key = waits.subject AND setter.status >= 4)
            OR EXISTS (
                SELECT 1 FROM checkpoints
                WHERE checkpoints.execution = waits.subject AND checkpoints.kind = 9 AND checkpoints.step_name = waits.name
            )
        )
    )
)
