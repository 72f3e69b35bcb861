-- Makes a scheduled execution ready when it is due. 1 key, 2 seq
INSERT INTO ready (execution, queue, queue_key, priority, seq, workflow, app_version)
SELECT key, coalesce(queue, 'default'), coalesce(queue_key, ''), coalesce(priority, 0), ?2, workflow, app_version
FROM executions WHERE key = ?1
ON CONFLICT DO NOTHING
