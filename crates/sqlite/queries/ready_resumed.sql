-- Makes an execution that has begun ready again: before those that have not begun, ordered by creation time. 1 key,
-- 2 is_woken
INSERT INTO ready (execution, route, queue_key, priority, seq, is_woken)
SELECT
    key, workflow || char(1) || coalesce(app_version, '') || char(1) || coalesce(queue, 'default'),
    coalesce(queue_key, ''), coalesce(priority, 0), created_at - 4611686018427387904, ?2
FROM executions WHERE key = ?1
ON CONFLICT DO NOTHING
