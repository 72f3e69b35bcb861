-- Makes a scheduled execution ready when it is due. 1 key, 2 seq
INSERT INTO ready (execution, route, queue_key, priority, seq)
SELECT
    key, workflow || char(1) || coalesce(app_version, '') || char(1) || coalesce(queue, 'default'),
    coalesce(queue_key, ''), coalesce(priority, 0), ?2
FROM executions WHERE key = ?1
ON CONFLICT DO NOTHING
