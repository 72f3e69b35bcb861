-- Starts roots that have a placement and no other option. A self-claiming Start begins at once if its queue has no
-- limits and is not paused; otherwise it is queued. $1: the worker, $2 to $9: arrays as in start_running.sql, $10: their
-- queues, $11: the lane. A change of a queue waits for the lock of lock_queues.sql, and then counts running executions. A
-- queue that such a change has locked is skipped, so its executions are queued. Returns one row: the number of all
-- executions, the number of those that were queued, and a kept report of the queues of the latter, null if there are none.
WITH free AS MATERIALIZED (
    SELECT l.name
    FROM unnest(string_to_array(current_setting('stepfast.locked_queues'), E'\n')) AS l (name)
    WHERE l.name = ANY($10::text[])
      AND (SELECT NOT q.is_serial AND NOT q.is_paused FROM queues AS q WHERE q.name = l.name)
      AND (SELECT true FROM depths AS d WHERE d.queue = l.name) IS NULL
), started AS (
    INSERT INTO executions (created_at, status, owner, key, workflow, app_version, input, queue,
                            queue_key, priority)
    SELECT u.created_at, CASE WHEN b.begins THEN 2 ELSE 1 END, CASE WHEN b.begins THEN $1::bigint END,
           u.key, u.workflow, u.app_version, u.input, u.queue, u.queue_key, u.priority
    FROM (SELECT unnest($2::timestamptz[]) AS created_at, unnest($3::uuid[]) AS key,
                 unnest($4::text[]) AS workflow, unnest($5::text[]) AS app_version, unnest($6::bytea[]) AS input,
                 unnest($7::text[]) AS queue, unnest($8::text[]) AS queue_key, unnest($9::integer[]) AS priority) AS u
    CROSS JOIN LATERAL (SELECT u.queue = ANY(ARRAY(SELECT f.name FROM free AS f)) AS begins) AS b
), queued AS (
    INSERT INTO ready (execution, route, queue_key, priority)
    SELECT u.key, u.workflow || E'\x01' || coalesce(u.app_version, '') || E'\x01' || u.queue,
           coalesce(u.queue_key, ''), coalesce(u.priority, 0)
    FROM (SELECT unnest($3::uuid[]) AS key, unnest($4::text[]) AS workflow, unnest($5::text[]) AS app_version,
                 unnest($7::text[]) AS queue, unnest($8::text[]) AS queue_key, unnest($9::integer[]) AS priority) AS u
    WHERE NOT (u.queue = ANY(ARRAY(SELECT f.name FROM free AS f)))
    RETURNING 1
)
SELECT cardinality($3::uuid[])::bigint, count(*),
       CASE WHEN count(*) > 0
            THEN keep_outcomes($1::bigint, $11::smallint, jsonb_build_object('queued_in', (
                SELECT jsonb_agg(q.name) FROM unnest($10::text[]) AS q (name)
                WHERE q.name NOT IN (SELECT f.name FROM free AS f)))) END AS report
FROM queued
