INSERT INTO requests (requested_at, kind, execution, n)
SELECT * FROM unnest($1::timestamptz[], $2::smallint[], $3::uuid[], $4::uuid[])
ON CONFLICT DO NOTHING
