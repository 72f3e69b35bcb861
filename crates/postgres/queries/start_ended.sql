-- The other common Start: a root that has ended meanwhile, with nothing special about it.
INSERT INTO executions (created_at, ended_at, shard, status, key, workflow, input, outcome)
SELECT u.created_at, u.ended_at, u.shard, u.status, u.key, u.workflow, u.input, u.outcome
FROM unnest($1::timestamptz[], $2::timestamptz[], $3::smallint[], $4::smallint[], $5::uuid[], $6::text[], $7::bytea[],
            $8::bytea[])
    AS u (created_at, ended_at, shard, status, key, workflow, input, outcome)
