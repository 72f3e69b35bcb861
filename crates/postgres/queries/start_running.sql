-- The most common Start: a running root without any options. Its key was minted for it, so no other execution can have
-- it. $1: the worker. Arrays side by side in a SELECT list are read row by row; in FROM each would be materialized first.
INSERT INTO executions (created_at, owner, status, key, workflow, input)
SELECT u.created_at, $1::bigint, 2, u.key, u.workflow, u.input
FROM (SELECT unnest($2::timestamptz[]) AS created_at, unnest($3::uuid[]) AS key,
             unnest($4::text[]) AS workflow, unnest($5::bytea[]) AS input) AS u
