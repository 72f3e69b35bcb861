-- Inserts the timer of a scheduled or suspended execution. 1 key, 2 due_at
INSERT INTO timers (execution, due_at, route, is_scheduled)
SELECT key, ?2, workflow || char(1) || coalesce(app_version, '') || char(1) || coalesce(queue, 'default'), status = 0
FROM executions WHERE key = ?1
