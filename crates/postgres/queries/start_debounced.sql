-- Starts debounced executions, at most one for each queue and dedup_id, in the order of both. If no such execution is
-- scheduled, the Start inserts one; otherwise the scheduled execution takes the input and the due time of the Start.
-- $1 to $8, $11 and $12: arrays as in start_running.sql, $9: due times, $10: the latest due time, in milliseconds after
-- the first Start, $13 and $14: the worker and its lane. Returns one row: the numbers of inserted executions and of all
-- Starts that inserted or changed one, and two kept reports, each null if there is nothing to report: of the scheduled
-- executions that were changed, and of the Starts that neither inserted nor changed one, as in start.sql.
WITH given AS MATERIALIZED (
    SELECT u.*
    FROM (SELECT unnest($1::timestamptz[]) AS created_at, unnest($2::uuid[]) AS key,
                 unnest($3::text[]) AS workflow, unnest($4::text[]) AS app_version, unnest($5::bytea[]) AS input,
                 unnest($6::text[]) AS queue, unnest($7::text[]) AS queue_key, unnest($8::integer[]) AS priority,
                 unnest($9::timestamptz[]) AS due_at, unnest($10::bigint[]) AS most_ms,
                 unnest($11::text[]) AS dedup_id, unnest($12::bigint[]) AS run_timeout_ms) AS u
    -- a Start that is sent again under another number may have inserted its execution already
    WHERE NOT EXISTS (SELECT FROM executions AS e WHERE e.key = u.key)
), merged AS (
    INSERT INTO executions AS e (created_at, status, key, workflow, app_version, input, queue, queue_key, priority,
                                 dedup_id, run_timeout_ms)
    SELECT created_at, 0, key, workflow, app_version, input, queue, queue_key, priority, dedup_id, run_timeout_ms
    FROM given
    ON CONFLICT (queue, dedup_id) WHERE dedup_id IS NOT NULL
    DO UPDATE SET input = excluded.input, app_version = excluded.app_version, queue_key = excluded.queue_key,
                  priority = excluded.priority, run_timeout_ms = excluded.run_timeout_ms
    RETURNING e.key, e.created_at, e.workflow, e.queue, e.dedup_id, e.xmax = 0 AS is_new
), due AS (
    INSERT INTO timers (due_at, execution, route, is_scheduled)
    SELECT least(g.due_at, m.created_at + g.most_ms * interval '1 millisecond'), m.key,
           m.workflow || E'\x01' || coalesce(g.app_version, '') || E'\x01' || m.queue, true
    FROM merged AS m
    JOIN given AS g ON g.queue = m.queue AND g.dedup_id = m.dedup_id
    ON CONFLICT (execution) DO UPDATE SET due_at = excluded.due_at, route = excluded.route
)
SELECT count(*) FILTER (WHERE is_new), count(*),
       CASE WHEN count(*) FILTER (WHERE is_new) < count(*)
            THEN keep_outcomes($13::bigint, $14::smallint, jsonb_build_object('merged',
                jsonb_agg(jsonb_build_array(key, queue, dedup_id)) FILTER (WHERE NOT is_new))) END AS report,
       CASE WHEN count(*) < cardinality($2::uuid[]) THEN (
           SELECT keep_conflicts($13::bigint, $14::smallint, 'not_inserted', array_agg(u.key), NULL,
                                 array_agg(u.queue), array_agg(u.dedup_id))
           FROM unnest($2::uuid[], $6::text[], $11::text[]) AS u (key, queue, dedup_id)
           WHERE (u.queue, u.dedup_id) NOT IN (SELECT queue, dedup_id FROM merged)) END AS report
FROM merged
