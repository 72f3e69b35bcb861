-- The execution that has the dedup_id already. 1 queue, 2 dedup_id
SELECT key, workflow, fingerprint, parent, status, created_at, workflow_id FROM executions
WHERE queue = ?1 AND dedup_id = ?2 AND dedup_id IS NOT NULL
