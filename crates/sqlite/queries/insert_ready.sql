-- Makes an execution ready for the first time. 1 key, 2 seq, 3 workflow, 4 app_version, 5 queue, 6 queue_key, 7
-- priority
INSERT INTO ready (execution, seq, route, queue_key, priority)
VALUES (?1, ?2, ?3 || char(1) || coalesce(?4, '') || char(1) || ?5, ?6, ?7)
ON CONFLICT DO NOTHING
