-- The rows of the bundles in a range without their inputs, each with its number of items and a pack; NULL for no pack.
-- 1 first key, 2 last key
SELECT
    key, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, owner, run_no,
    recoveries, created_at, ended_at, deadline_at, armed,
    (SELECT due_at FROM timers WHERE execution = executions.key), outcome, NULL,
    strikes, app_version, queue, queue_key, priority, dedup_id, run_timeout_ms,
    (SELECT item_count FROM bundles WHERE bundles.key = executions.key), packs.outcomes
FROM executions LEFT JOIN packs ON packs.bundle = executions.key
WHERE executions.key BETWEEN ?1 AND ?2 ORDER BY executions.key
