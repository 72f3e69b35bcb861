-- Starts executions with any options. Arrays as in start_running.sql. $23 and $24: the worker and its lane. Returns one row:
-- the number of inserted executions, and a kept report of the Starts that were not inserted and of the executions that they
-- found, null if all were inserted.
WITH started AS (
    INSERT INTO executions (created_at, ended_at, deadline_at, owner, fingerprint, status, is_paused,
                            is_detached, key, root, parent, workflow, workflow_id, input, outcome, armed, app_version,
                            queue, queue_key, priority, dedup_id, run_timeout_ms)
    SELECT unnest($1::timestamptz[]), unnest($2::timestamptz[]), unnest($3::timestamptz[]), unnest($4::bigint[]),
           unnest($5::bigint[]), unnest($6::smallint[]), unnest($7::boolean[]),
           unnest($8::boolean[]), unnest($9::uuid[]), unnest($10::uuid[]), unnest($11::uuid[]),
           unnest($12::text[]), unnest($13::text[]), unnest($14::bytea[]), unnest($15::bytea[]),
           unnest($16::bytea[]), unnest($17::text[]), unnest($18::text[]), unnest($19::text[]), unnest($20::integer[]),
           unnest($21::text[]), unnest($22::bigint[])
    ON CONFLICT DO NOTHING
    RETURNING key, status, deadline_at
), dated AS (
    INSERT INTO deadlines (due_at, execution)
    SELECT deadline_at, key FROM started WHERE deadline_at IS NOT NULL AND status IN (0, 1, 3)
    ON CONFLICT DO NOTHING
)
SELECT count(*),
       CASE WHEN count(*) < cardinality($9::uuid[]) THEN (
           SELECT keep_conflicts($23::bigint, $24::smallint, 'not_inserted', array_agg(u.key), array_agg(u.id),
                                 array_agg(u.queue), array_agg(u.dedup_id))
           FROM unnest($9::uuid[], $13::text[], $18::text[], $21::text[]) AS u (key, id, queue, dedup_id)
           WHERE u.key NOT IN (SELECT key FROM started)) END AS report
FROM started
