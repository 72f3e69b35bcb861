-- Arrays as in start_running.sql.
INSERT INTO checkpoints (recorded_at, took_ms, order_no, fingerprint, run_no, kind, execution, path, step_name,
                         outcome)
SELECT unnest($1::timestamptz[]), unnest($2::bigint[]), unnest($3::bigint[]), unnest($4::bigint[]),
       unnest($5::integer[]), unnest($6::smallint[]), unnest($7::uuid[]), unnest($8::bytea[]), unnest($9::text[]),
       unnest($10::bytea[])
