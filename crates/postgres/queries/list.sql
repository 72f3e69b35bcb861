-- SELECT clause of lists: executions without payloads; filter_where.sql selects the rows. Attributes come as name, value,
-- name, ...
SELECT e.key, e.root, e.parent, e.is_detached, e.workflow_id, e.workflow, e.fingerprint, e.status, e.is_paused,
       ''::bytea, NULL::bytea,
       e.owner, e.run_no, e.recoveries, e.created_at,
       e.ended_at, e.deadline_at, e.armed, (SELECT t.due_at FROM timers AS t WHERE t.execution = e.key), e.strikes,
       e.app_version, e.queue, e.queue_key, e.priority, e.dedup_id, e.run_timeout_ms,
       ARRAY(SELECT unnest(ARRAY[x.name, x.value]) FROM attributes AS x WHERE x.execution = e.key)
