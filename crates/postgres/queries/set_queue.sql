-- $1: name, $2: version, $3: the time now, null for the server's, $4: is_paused, $5: is_serial, $6 to $8: limits. It waits
-- for claims that are under way.
INSERT INTO queues (name, version, changed_at, is_paused, is_serial, concurrency, worker_concurrency, key_concurrency)
VALUES ($1::text, $2::bigint, coalesce($3::timestamptz, clock_timestamp()), $4::boolean, $5::boolean, $6::integer,
        $7::integer, $8::integer)
ON CONFLICT (name) DO UPDATE
SET version = excluded.version, changed_at = excluded.changed_at, is_paused = excluded.is_paused,
    is_serial = excluded.is_serial, concurrency = excluded.concurrency,
    worker_concurrency = excluded.worker_concurrency, key_concurrency = excluded.key_concurrency
WHERE queues.version = $2::bigint - 1
RETURNING changed_at
