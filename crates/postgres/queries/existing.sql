SELECT key, workflow_id, workflow, fingerprint, parent, status, created_at,
       CASE WHEN status = 2 THEN coalesce(owner, started_by) END
FROM executions WHERE key = ANY($1::uuid[])
UNION ALL
SELECT key, workflow_id, workflow, fingerprint, parent, status, created_at,
       CASE WHEN status = 2 THEN coalesce(owner, started_by) END
FROM executions WHERE workflow_id = ANY($2::text[]) AND octet_length(workflow_id) <= 1024
UNION ALL
SELECT key, workflow_id, workflow, fingerprint, parent, status, created_at,
       CASE WHEN status = 2 THEN coalesce(owner, started_by) END
FROM executions
WHERE sha256(decode(replace(workflow_id, '\', '\\'), 'escape')) = ANY(ARRAY(
          SELECT sha256(decode(replace(g.id, '\', '\\'), 'escape')) FROM unnest($2::text[]) AS g (id)
          WHERE octet_length(g.id) > 1024))
  AND octet_length(workflow_id) > 1024
