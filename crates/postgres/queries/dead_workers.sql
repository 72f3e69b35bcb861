-- Returns the workers that are dead: not registered, or with an expired lease. $1: workers, $2: the time now, null for
-- the server's, $3: the lease in microseconds. As in heartbeat.sql, a lease counts at least from the server's start.
SELECT u.id
FROM unnest($1::bigint[]) WITH ORDINALITY AS u (id, n)
LEFT JOIN workers AS w ON w.worker_id = u.id
WHERE w.worker_id IS NULL
   OR coalesce($2::timestamptz, clock_timestamp())
      > greatest(w.lease_expires_at, CASE WHEN $2::timestamptz IS NULL
                 THEN pg_postmaster_start_time() + $3::bigint * interval '1 microsecond' END)
ORDER BY u.n
