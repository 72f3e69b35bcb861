-- Arrays as in start_running.sql.
INSERT INTO executions (created_at, ended_at, deadline_at, owner, fingerprint, shard, status, is_paused,
                        is_detached, key, root, parent, workflow, workflow_id, input, outcome, armed, app_version,
                        queue, queue_key, priority, dedup_id, run_timeout_ms)
SELECT unnest($1::timestamptz[]), unnest($2::timestamptz[]), unnest($3::timestamptz[]), unnest($4::bigint[]),
       unnest($5::bigint[]), unnest($6::smallint[]), unnest($7::smallint[]), unnest($8::boolean[]),
       unnest($9::boolean[]), unnest($10::uuid[]), unnest($11::uuid[]), unnest($12::uuid[]),
       unnest($13::text[]), unnest($14::text[]), unnest($15::bytea[]), unnest($16::bytea[]),
       unnest($17::bytea[]), unnest($18::text[]), unnest($19::text[]), unnest($20::text[]), unnest($21::integer[]),
       unnest($22::text[]), unnest($23::bigint[])
ON CONFLICT DO NOTHING
RETURNING key
