-- Starts roots that have a placement and no other option. A self-claiming Start begins at once if its queue has no
-- limits and is not paused; otherwise it is queued. An execution that begins without a claim has is_alone = false,
-- which identifies it if the reply is lost. $1: the worker, $2 to $9: arrays as in start_running.sql, $10: whether each
-- may begin, $11: their queues. A change that gives a queue limits waits for the lock, and then counts running
-- executions. A queue that such a change has locked is skipped, so its executions are queued. Returns the queues whose
-- executions may begin, the number of all executions, and the number of those that were queued.
WITH free AS MATERIALIZED (
    SELECT q.name
    FROM unnest($11::text[]) AS u (queue)
    CROSS JOIN LATERAL (SELECT q.name FROM queues AS q
                        WHERE q.name = u.queue AND NOT q.is_serial AND NOT q.is_paused
                          AND NOT EXISTS (SELECT FROM depths AS d WHERE d.queue = q.name)
                        OFFSET 0 FOR SHARE SKIP LOCKED) AS q
), started AS (
    INSERT INTO executions (created_at, status, started_by, is_alone, key, workflow, app_version, input, queue,
                            queue_key, priority)
    SELECT u.created_at, CASE WHEN b.begins THEN 2 ELSE 1 END, CASE WHEN b.begins THEN $1::bigint END,
           CASE WHEN b.begins THEN false END, u.key, u.workflow, u.app_version, u.input, u.queue, u.queue_key, u.priority
    FROM (SELECT unnest($2::timestamptz[]) AS created_at, unnest($3::uuid[]) AS key,
                 unnest($4::text[]) AS workflow, unnest($5::text[]) AS app_version, unnest($6::bytea[]) AS input,
                 unnest($7::text[]) AS queue, unnest($8::text[]) AS queue_key, unnest($9::integer[]) AS priority,
                 unnest($10::boolean[]) AS may_begin) AS u
    CROSS JOIN LATERAL (SELECT u.may_begin AND u.queue = ANY(ARRAY(SELECT f.name FROM free AS f)) AS begins) AS b
), queued AS (
    INSERT INTO ready (execution, workflow, app_version, queue, queue_key, priority)
    SELECT u.key, u.workflow, u.app_version, u.queue, coalesce(u.queue_key, ''), coalesce(u.priority, 0)
    FROM (SELECT unnest($3::uuid[]) AS key, unnest($4::text[]) AS workflow, unnest($5::text[]) AS app_version,
                 unnest($7::text[]) AS queue, unnest($8::text[]) AS queue_key, unnest($9::integer[]) AS priority,
                 unnest($10::boolean[]) AS may_begin) AS u
    WHERE NOT (u.may_begin AND u.queue = ANY(ARRAY(SELECT f.name FROM free AS f)))
    RETURNING 1
)
SELECT ARRAY(SELECT f.name FROM free AS f), cardinality($3::uuid[])::bigint, (SELECT count(*) FROM queued)
