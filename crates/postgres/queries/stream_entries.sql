-- Loads entries of streams. $1: executions, $2: streams, $3: for each, the offset of the first entry, or null for the last entry
-- only, $4: the maximum number of entries of a stream.
SELECT u.n - 1, e."offset", e.attempt_offset, e.path, e.value, e.written_at
FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS u (execution, stream, first, n)
CROSS JOIN LATERAL (
    (SELECT s.* FROM stream_entries AS s
     WHERE s.execution = u.execution AND s.stream = u.stream AND s."offset" >= u.first
     ORDER BY s."offset" LIMIT $4::bigint)
    UNION ALL
    (SELECT s.* FROM stream_entries AS s
     WHERE u.first IS NULL AND s.execution = u.execution AND s.stream = u.stream
     ORDER BY s."offset" DESC LIMIT 1)
) AS e
ORDER BY u.n, e."offset"
