-- Registers a worker. $1: the number of lanes, $2: the time now, null for the server's, $3: the lease in microseconds, $4
-- to $10: the worker's description, $11: its epoch, which no other registration has, $12: the newest version of the schema
-- that its program supports. The row of `shard` is locked, so that a migration and a registration wait for each other:
-- either the migration sees the worker, or the worker's program is too old and no row is returned.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now
), place AS (
    SELECT number FROM shard WHERE oldest_engine <= $12::integer FOR SHARE
), worker AS (
    INSERT INTO workers (registered_at, lease_expires_at, host, pid, engine, app_version, workflows, is_client,
                         queues, epoch, lease_ms)
    SELECT now, now + CASE WHEN $9::boolean THEN interval '1 day' ELSE $3::bigint * interval '1 microsecond' END,
           $4::text, $5::bigint, $6::text, $7::text, $8::text[], $9::boolean,
           $10::text[], $11::bigint, CASE WHEN $9::boolean THEN 86400000 ELSE $3::bigint / 1000 END
    FROM clock, place
    RETURNING worker_id, epoch
), fences AS (
    INSERT INTO lanes (worker_id, epoch, lane)
    SELECT worker_id, epoch, lane FROM worker, generate_series(0, $1::integer - 1) AS lane
)
SELECT worker_id, epoch, now FROM worker, clock
