-- Makes an execution of a row of the inbox, unless one with its key, workflow_id or dedup_id exists already. 1 id, 2
-- status
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
