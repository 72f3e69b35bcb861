SELECT key, workflow_id, workflow, fingerprint, parent, status, created_at
FROM executions WHERE key = ANY($1::uuid[])
UNION ALL
SELECT key, workflow_id, workflow, fingerprint, parent, status, created_at
FROM executions WHERE workflow_id = ANY($2::text[])
