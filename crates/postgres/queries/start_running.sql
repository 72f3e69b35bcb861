-- The common Start: a root that runs, with nothing special about it. Its key was minted for it, so nobody can have it.
-- $1: the worker.
INSERT INTO executions (created_at, owner, shard, status, key, workflow, input)
SELECT u.created_at, $1::bigint, u.shard, 2, u.key, u.workflow, u.input
FROM unnest($2::timestamptz[], $3::smallint[], $4::uuid[], $5::text[], $6::bytea[])
    AS u (created_at, shard, key, workflow, input)
