INSERT INTO stream_entries ("offset", attempt_offset, written_at, execution, stream, path, value)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::timestamptz[], $4::uuid[], $5::text[], $6::bytea[], $7::bytea[])
