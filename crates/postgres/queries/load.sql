-- Loads executions. $1: keys, $2: ids given by callers, $3: true to leave out the inputs. The last column is the number of
-- items in a bundle; only the keys of batches, bundles and items have both variant bits, and in those of items byte 10 is small.
SELECT e.key, e.root, e.parent, e.is_detached, e.workflow_id, e.workflow, e.fingerprint, e.status, e.is_paused,
       CASE WHEN $3::boolean THEN '' ELSE e.input END, e.outcome,
       e.owner, e.run_no, e.recoveries, e.created_at,
       e.ended_at, e.deadline_at, e.armed, t.due_at, e.strikes, e.app_version,
       e.queue, e.queue_key, e.priority, e.dedup_id, e.run_timeout_ms,
       CASE WHEN get_byte(uuid_send(e.key), 8) >= 192 AND get_byte(uuid_send(e.key), 10) >= 128
            THEN (SELECT b.item_count FROM bundles AS b WHERE b.key = e.key) END
FROM (SELECT unnest($1::uuid[])
      UNION
      SELECT x.key FROM executions AS x
      WHERE x.workflow_id = ANY($2::text[]) AND octet_length(x.workflow_id) <= 1024
      UNION
      SELECT x.key FROM executions AS x
      WHERE sha256(decode(replace(x.workflow_id, '\', '\\'), 'escape')) = ANY(ARRAY(
                SELECT sha256(decode(replace(g.id, '\', '\\'), 'escape')) FROM unnest($2::text[]) AS g (id)
                WHERE octet_length(g.id) > 1024))
        AND octet_length(x.workflow_id) > 1024) AS k (key)
JOIN executions AS e ON e.key = k.key
LEFT JOIN timers AS t ON t.execution = e.key
