SELECT e.key, e.root, e.parent, e.is_detached, e.workflow_id, e.workflow, e.fingerprint, e.status, e.is_paused,
       ''::bytea, NULL::bytea,
       CASE WHEN e.status = 2 THEN coalesce(e.owner, e.started_by) END, e.run_no, e.recoveries, e.created_at, e.ended_at, e.deadline_at, e.armed,
       t.due_at, e.strikes, e.app_version, e.queue, e.queue_key, e.priority, e.dedup_id, e.run_timeout_ms
FROM executions AS e
LEFT JOIN timers AS t ON t.execution = e.key
WHERE ($1::smallint[] IS NULL OR e.status = ANY($1::smallint[]))
  AND ($2::text IS NULL OR e.workflow = $2::text)
  AND ($3::boolean IS NULL OR e.is_paused = $3::boolean)
  AND ($4::uuid IS NULL OR e.parent = $4::uuid)
  AND ($5::text IS NULL OR starts_with(coalesce(e.workflow_id, e.key::text), $5::text))
  AND ($6::timestamptz IS NULL OR e.created_at >= $6::timestamptz)
  AND ($7::timestamptz IS NULL OR e.created_at < $7::timestamptz)
  AND ($8::text IS NULL OR e.app_version = $8::text)
  AND ($9::uuid IS NULL OR e.key < $9::uuid)
ORDER BY e.key DESC
LIMIT $10::bigint
