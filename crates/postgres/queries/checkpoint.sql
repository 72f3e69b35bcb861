INSERT INTO checkpoints (recorded_at, took_ms, order_no, fingerprint, run_no, kind, execution, path, step_name,
                         outcome)
SELECT * FROM unnest($1::timestamptz[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[],
                     $6::smallint[], $7::uuid[], $8::bytea[], $9::text[], $10::bytea[])
