-- A row of the inbox becomes an execution, unless it is there already, by its workflow_id or its dedup_id. 1 id, 2 status,
-- 3 the time now. Times are brought within a hundred years of now, and timeouts to at most that
INSERT INTO executions (
    key, shard, is_detached, workflow_id, workflow, fingerprint, status, created_at, deadline_at, input, app_version,
    queue, queue_key, priority, dedup_id, run_timeout_ms
)
SELECT
    key, shard, 0, workflow_id, workflow, fingerprint, ?2,
    min(max(put_at, ?3 - 3162240000000000), ?3 + 3162240000000000),
    min(max(deadline_at, ?3 - 3162240000000000), ?3 + 3162240000000000),
    input, app_version, queue, queue_key, priority, dedup_id, min(max(run_timeout_ms, 0), 3162240000000)
FROM inbox
WHERE id = ?1
ON CONFLICT DO NOTHING
