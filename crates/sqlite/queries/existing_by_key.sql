-- The execution that has the key already. 1 key
SELECT key, workflow, fingerprint, parent, status, created_at, workflow_id FROM executions WHERE key = ?1
