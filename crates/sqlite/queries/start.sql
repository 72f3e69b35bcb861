-- Any Start. 1 key, 2 shard, 3 root, 4 parent, 5 is_detached, 6 workflow_id, 7 workflow, 8 fingerprint,
-- 9 status, 10 is_paused, 11 owner, 12 created_at, 13 ended_at, 14 deadline_at, 15 armed, 16 input, 17 outcome,
-- 18 app_version, 19 queue, 20 queue_key, 21 priority, 22 dedup_id, 23 run_timeout_ms, 24 is_alone
INSERT OR FAIL INTO executions (
    key, shard, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, owner,
    created_at, ended_at, deadline_at, armed, input, outcome, app_version, queue, queue_key, priority,
    dedup_id, run_timeout_ms, is_alone
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24)
ON CONFLICT DO NOTHING
