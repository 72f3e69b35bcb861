-- Makes an execution that has begun ready again: before those that have not begun, ordered by creation time. 1 key,
-- 2 is_woken
INSERT INTO ready (execution, queue, queue_key, priority, seq, workflow, app_version, is_woken)
SELECT
    key, coalesce(queue, 'default'), coalesce(queue_key, ''), coalesce(priority, 0),
    created_at - 4611686018427387904, workflow, app_version, ?2
FROM executions WHERE key = ?1
ON CONFLICT DO NOTHING
