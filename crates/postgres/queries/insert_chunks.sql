INSERT INTO chunks (value, n, execution, bytes)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bytea[])
ON CONFLICT DO NOTHING
