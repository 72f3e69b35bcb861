-- The second most common Start: a root that has ended already, without any options. Arrays as in start_running.sql.
INSERT INTO executions (created_at, ended_at, status, key, workflow, input, outcome)
SELECT u.created_at, u.ended_at, u.status, u.key, u.workflow, u.input, u.outcome
FROM (SELECT unnest($1::timestamptz[]) AS created_at, unnest($2::timestamptz[]) AS ended_at,
             unnest($3::smallint[]) AS status, unnest($4::uuid[]) AS key,
             unnest($5::text[]) AS workflow, unnest($6::bytea[]) AS input, unnest($7::bytea[]) AS outcome) AS u
