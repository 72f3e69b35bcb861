-- A suspended execution one of whose conditions holds. 1 key, 2 now
UPDATE executions SET status = 1
WHERE key = ?1 AND status = 3 AND (
    EXISTS (SELECT 1 FROM timers WHERE execution = ?1 AND due_at <= ?2)
    OR EXISTS (
        SELECT 1 FROM waits CROSS JOIN executions AS child ON child.key = waits.child
        WHERE waits.execution = ?1 AND child.status >= 4
    )
)
