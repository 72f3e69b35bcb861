-- An execution's row with its payloads. 1 key
SELECT
    key, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, owner, run_no,
    recoveries, created_at, ended_at, deadline_at, armed,
    (SELECT due_at FROM timers WHERE execution = executions.key), outcome, input,
    strikes, app_version, queue, queue_key, priority, dedup_id, run_timeout_ms
FROM executions WHERE key = ?1
