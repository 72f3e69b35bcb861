-- Merges a debounced start into the scheduled execution with its dedup_id. 1 queue, 2 dedup_id, 3 input, 4 queue_key,
-- 5 priority, 6 app_version, 7 run_timeout_ms
UPDATE executions SET input = ?3, queue_key = ?4, priority = ?5, app_version = ?6, run_timeout_ms = ?7
WHERE queue = ?1 AND dedup_id = ?2 AND dedup_id IS NOT NULL AND status = 0
RETURNING key, workflow, fingerprint, parent, status, created_at, workflow_id
