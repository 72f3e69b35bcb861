-- $1: keys, $2: ids given by callers, $3 and $4: queues and dedup_ids. Of what runs without a claim, who runs it.
SELECT key, workflow_id, workflow, fingerprint, parent, status, created_at,
       CASE WHEN status = 2 AND is_alone = false THEN coalesce(owner, started_by) END, queue, dedup_id
FROM executions WHERE key = ANY($1::uuid[])
UNION ALL
SELECT key, workflow_id, workflow, fingerprint, parent, status, created_at,
       CASE WHEN status = 2 AND is_alone = false THEN coalesce(owner, started_by) END, queue, dedup_id
FROM executions WHERE workflow_id = ANY($2::text[]) AND octet_length(workflow_id) <= 1024
UNION ALL
SELECT key, workflow_id, workflow, fingerprint, parent, status, created_at,
       CASE WHEN status = 2 AND is_alone = false THEN coalesce(owner, started_by) END, queue, dedup_id
FROM executions
WHERE sha256(decode(replace(workflow_id, '\', '\\'), 'escape')) = ANY(ARRAY(
          SELECT sha256(decode(replace(g.id, '\', '\\'), 'escape')) FROM unnest($2::text[]) AS g (id)
          WHERE octet_length(g.id) > 1024))
  AND octet_length(workflow_id) > 1024
UNION ALL
SELECT e.key, e.workflow_id, e.workflow, e.fingerprint, e.parent, e.status, e.created_at,
       CASE WHEN e.status = 2 AND e.is_alone = false THEN coalesce(e.owner, e.started_by) END, e.queue, e.dedup_id
FROM unnest($3::text[], $4::text[]) AS u (queue, dedup_id)
CROSS JOIN LATERAL (SELECT * FROM executions AS e
                    WHERE e.queue = u.queue AND e.dedup_id = u.dedup_id AND e.dedup_id IS NOT NULL OFFSET 0) AS e
