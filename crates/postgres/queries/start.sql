INSERT INTO executions (created_at, ended_at, deadline_at, owner, fingerprint, shard, status, is_paused,
                        is_detached, key, root, parent, workflow, workflow_id, input, outcome, armed, app_version)
SELECT * FROM unnest($1::timestamptz[], $2::timestamptz[], $3::timestamptz[], $4::bigint[], $5::bigint[],
                     $6::smallint[], $7::smallint[], $8::boolean[], $9::boolean[], $10::uuid[], $11::uuid[],
                     $12::uuid[], $13::text[], $14::text[], $15::bytea[], $16::bytea[], $17::bytea[],
                     $18::text[])
ON CONFLICT DO NOTHING
RETURNING key
