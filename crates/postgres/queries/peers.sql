-- Returns the leases of other workers. $1: the worker, $2: the time now, null for the server's, $3: the lease in
-- microseconds, $4: whether to return also clients whose lease of a day is over. An outage of the server must not make
-- workers count as dead: a lease counts at least from the server's start.
WITH peers AS (
    SELECT w.worker_id, w.lease_expires_at, w.lease_ms, w.is_client
    FROM workers AS w
    WHERE NOT w.is_client AND w.worker_id <> $1::bigint
  UNION ALL
    SELECT w.worker_id, w.lease_expires_at, w.lease_ms, w.is_client
    FROM workers AS w
    WHERE $4::boolean AND w.is_client AND w.worker_id <> $1::bigint
)
SELECT o.worker_id, o.lease_expires_at, o.lease_ms, o.is_over, o.is_client
FROM (SELECT p.*,
             coalesce($2::timestamptz, clock_timestamp())
             > greatest(p.lease_expires_at, CASE WHEN $2::timestamptz IS NULL
                        THEN pg_postmaster_start_time() + $3::bigint * interval '1 microsecond' END) AS is_over
      FROM peers AS p) AS o
WHERE o.is_over OR NOT o.is_client
ORDER BY o.worker_id
