-- Renews a worker's lease. $1: the worker, $2: its epoch, $3: the time now, null for the server's, $4: the lease in
-- microseconds. Returns the time, whether the worker is registered, the oldest engine that may use the store, whether other
-- workers exist, whether the worker observes the leases of others (the eight live workers with the lowest ids do), and whether there
-- are requests to the worker's executions. A lease that ends too late was written before the server's clock was set back, and does
-- not show that its worker lives.
-- The commit does not wait for a flush of the log. A crash of the server may then undo a renewal, which does no harm,
-- because a lease counts at least from the server's start.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now, set_config('synchronous_commit', 'off', true)
), renewed AS (
    UPDATE workers AS w
    SET lease_expires_at = clock.now + CASE WHEN w.is_client THEN interval '1 day'
                                            ELSE $4::bigint * interval '1 microsecond' END
    FROM clock
    WHERE w.worker_id = $1::bigint AND w.epoch = $2::bigint
    RETURNING w.is_client
)
SELECT clock.now, EXISTS (SELECT FROM renewed), (SELECT s.oldest_engine FROM shard AS s),
       EXISTS (SELECT FROM workers AS o WHERE o.worker_id < $1::bigint)
       OR EXISTS (SELECT FROM workers AS o WHERE o.worker_id > $1::bigint),
       EXISTS (SELECT FROM renewed WHERE NOT is_client)
       AND (SELECT count(*) FROM (SELECT FROM workers AS o
                                  WHERE NOT o.is_client AND o.worker_id < $1::bigint AND o.lease_expires_at > clock.now
                                    AND o.lease_expires_at
                                        <= clock.now + 2 * coalesce(o.lease_ms, $4::bigint / 1000) * interval '1 millisecond'
                                  ORDER BY o.worker_id
                                  LIMIT 8) AS o) < 8,
       (SELECT true FROM requests AS r WHERE r.worker_id = $1::bigint LIMIT 1) IS TRUE
FROM clock
