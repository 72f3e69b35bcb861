-- The common Start: a root that runs, with nothing special about it. Its key was minted for it, so nobody can have it.
-- $1: the worker, which is not entered in the index of owners: see window.rs. Arrays side by side in a SELECT list go row by row; in FROM each would be stored away first.
INSERT INTO executions (created_at, started_by, status, key, workflow, input)
SELECT u.created_at, $1::bigint, 2, u.key, u.workflow, u.input
FROM (SELECT unnest($2::timestamptz[]) AS created_at, unnest($3::uuid[]) AS key,
             unnest($4::text[]) AS workflow, unnest($5::bytea[]) AS input) AS u
