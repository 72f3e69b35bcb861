WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now
), worker AS (
    INSERT INTO workers (registered_at, lease_expires_at)
    SELECT now, now + $3::bigint * interval '1 microsecond' FROM clock
    RETURNING worker_id, epoch
), fences AS (
    INSERT INTO lanes (worker_id, epoch, lane)
    SELECT worker_id, epoch, lane FROM worker, generate_series(0, $1::integer - 1) AS lane
)
SELECT worker_id, epoch, now FROM worker, clock
