-- Returns the executions that Starts are duplicates of. $1: keys, $2: ids given by callers, $3 and $4: queues and
-- dedup_ids. Returns the worker only of executions that run without a claim.
SELECT e.key, e.workflow_id, e.workflow, e.fingerprint, e.parent, e.status, e.created_at,
       CASE WHEN e.status = 2 AND e.is_alone = false THEN coalesce(e.owner, e.started_by) END, e.queue, e.dedup_id
FROM (SELECT unnest($1::uuid[])
      UNION
      SELECT x.key FROM executions AS x
      WHERE x.workflow_id = ANY($2::text[]) AND octet_length(x.workflow_id) <= 1024
      UNION
      SELECT x.key FROM executions AS x
      WHERE sha256(decode(replace(x.workflow_id, '\', '\\'), 'escape')) = ANY(ARRAY(
                SELECT sha256(decode(replace(g.id, '\', '\\'), 'escape')) FROM unnest($2::text[]) AS g (id)
                WHERE octet_length(g.id) > 1024))
        AND octet_length(x.workflow_id) > 1024
      UNION
      SELECT x.key
      FROM unnest($3::text[], $4::text[]) AS u (queue, dedup_id)
      CROSS JOIN LATERAL (SELECT x.key FROM executions AS x
                          WHERE x.queue = u.queue AND x.dedup_id = u.dedup_id AND x.dedup_id IS NOT NULL OFFSET 0) AS x
     ) AS k (key)
JOIN executions AS e ON e.key = k.key
