-- Puts an execution into quarantine. 1 execution, 2 due_at
INSERT INTO quarantine (execution, due_at, workflow, app_version)
SELECT key, ?2, workflow, coalesce(app_version, '') FROM executions WHERE key = ?1 ON CONFLICT DO NOTHING
