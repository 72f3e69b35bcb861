-- A row of the inbox becomes an execution, unless it is there already, by its workflow_id or its dedup_id. 1 id, 2 status
INSERT INTO executions (
    key, is_detached, workflow_id, workflow, fingerprint, status, created_at, deadline_at, input, app_version,
    queue, queue_key, priority, dedup_id, run_timeout_ms
)
SELECT
    key, 0, workflow_id, workflow, fingerprint, ?2, put_at, deadline_at, input, app_version, queue, queue_key, priority,
    dedup_id, run_timeout_ms
FROM inbox
WHERE id = ?1
ON CONFLICT DO NOTHING
