-- Queues a suspended execution if its timer is due or one of its children has finished. 1 key, 2 the time now
UPDATE executions SET status = 1
WHERE key = ?1 AND status = 3 AND (
    EXISTS (SELECT 1 FROM timers WHERE execution = ?1 AND due_at <= ?2)
    OR EXISTS (
        SELECT 1 FROM waits CROSS JOIN executions AS child ON child.key = waits.child
        WHERE waits.execution = ?1 AND child.status >= 4
    )
)
