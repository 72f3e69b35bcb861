-- Starts queued roots without other options. Their keys were minted for them, so no other execution can have them. Arrays
-- as in start_running.sql; the executions become ready in the order of the arrays.
WITH started AS (
    INSERT INTO executions (created_at, status, key, workflow, app_version, input, queue, queue_key, priority)
    SELECT u.created_at, 1, u.key, u.workflow, u.app_version, u.input, u.queue, u.queue_key, u.priority
    FROM (SELECT unnest($1::timestamptz[]) AS created_at, unnest($2::uuid[]) AS key, unnest($3::text[]) AS workflow, unnest($4::text[]) AS app_version,
                 unnest($5::bytea[]) AS input, unnest($6::text[]) AS queue, unnest($7::text[]) AS queue_key,
                 unnest($8::integer[]) AS priority) AS u
)
INSERT INTO ready (execution, route, queue_key, priority)
SELECT u.key, u.workflow || E'\x01' || coalesce(u.app_version, '') || E'\x01' || coalesce(u.queue, 'default'),
       coalesce(u.queue_key, ''), coalesce(u.priority, 0)
FROM (SELECT unnest($2::uuid[]) AS key, unnest($3::text[]) AS workflow, unnest($4::text[]) AS app_version,
             unnest($6::text[]) AS queue, unnest($7::text[]) AS queue_key, unnest($8::integer[]) AS priority) AS u
