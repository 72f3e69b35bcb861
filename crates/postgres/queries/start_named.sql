-- Starts roots that have an id given by their caller and no other option. A Start whose id or key exists inserts nothing.
-- $1: the worker, $2 to $10: arrays as in start_running.sql, $11: the lane. Returns one row as in start.sql.
WITH started AS (
    INSERT INTO executions (created_at, ended_at, owner, fingerprint, status, key, workflow, workflow_id,
                            input, outcome)
    SELECT u.created_at, u.ended_at, CASE WHEN u.status = 2 THEN $1::bigint END, u.fingerprint, u.status,
           u.key, u.workflow, u.workflow_id, u.input, u.outcome
    FROM (SELECT unnest($2::timestamptz[]) AS created_at, unnest($3::timestamptz[]) AS ended_at,
                 unnest($4::bigint[]) AS fingerprint,
                 unnest($5::smallint[]) AS status, unnest($6::uuid[]) AS key, unnest($7::text[]) AS workflow,
                 unnest($8::text[]) AS workflow_id, unnest($9::bytea[]) AS input,
                 unnest($10::bytea[]) AS outcome) AS u
    ON CONFLICT DO NOTHING
    RETURNING key
)
SELECT count(*),
       CASE WHEN count(*) < cardinality($6::uuid[]) THEN (
           SELECT keep_conflicts($1::bigint, $11::smallint, 'not_inserted', array_agg(u.key), array_agg(u.id), NULL, NULL)
           FROM unnest($6::uuid[], $8::text[]) AS u (key, id)
           WHERE u.key NOT IN (SELECT key FROM started)) END AS report
FROM started
