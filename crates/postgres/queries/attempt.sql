INSERT INTO attempts (failed_at, attempt, execution, path, failure)
SELECT * FROM unnest($1::timestamptz[], $2::bigint[], $3::uuid[], $4::bytea[], $5::bytea[])
