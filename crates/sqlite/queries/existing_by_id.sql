-- The execution that has the workflow_id already. 1 workflow_id
SELECT key, workflow, fingerprint, parent, status, created_at, workflow_id FROM executions WHERE workflow_id = ?1
