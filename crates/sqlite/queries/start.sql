-- Any Start. 1 key, 2 root, 3 parent, 4 is_detached, 5 workflow_id, 6 workflow, 7 fingerprint,
-- 8 status, 9 is_paused, 10 owner, 11 created_at, 12 ended_at, 13 deadline_at, 14 armed, 15 input, 16 outcome,
-- 17 app_version, 18 queue, 19 queue_key, 20 priority, 21 dedup_id, 22 run_timeout_ms
INSERT OR FAIL INTO executions (
    key, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, owner,
    created_at, ended_at, deadline_at, armed, input, outcome, app_version, queue, queue_key, priority,
    dedup_id, run_timeout_ms
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
ON CONFLICT DO NOTHING
