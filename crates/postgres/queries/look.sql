-- $1: who looks, $2: its epoch, $3: the time now, null for the server's, $4: the lease in microseconds, $5: what it
-- watches, $6: its workflows. The OFFSETs keep the plan as it is written, from the small tables to the large one.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now, $4::bigint * interval '1 microsecond' AS lease
), renewed AS (
    UPDATE workers AS w
    SET lease_expires_at = clock.now + clock.lease
    FROM clock
    WHERE w.worker_id = $1::bigint AND w.epoch = $2::bigint
    RETURNING 1
)
SELECT clock.now,
       NOT EXISTS (SELECT FROM renewed),
       asked.executions, asked.kinds,
       ARRAY(SELECT u.key
             FROM unnest($5::uuid[]) AS u (key)
             CROSS JOIN LATERAL (SELECT FROM executions AS e
                                 WHERE e.key = u.key AND (e.status >= 4 OR e.is_paused) OFFSET 0) AS e),
       EXISTS (SELECT FROM ready AS r WHERE r.workflow = ANY($6::text[])),
       (SELECT t.due_at
        FROM (SELECT due_at, execution FROM timers ORDER BY due_at OFFSET 0) AS t
        CROSS JOIN LATERAL (SELECT FROM executions AS e
                            WHERE e.key = t.execution AND e.status = 3 AND e.workflow = ANY($6::text[])
                            OFFSET 0) AS e
        LIMIT 1),
       others.ids, others.leases, others.expired,
       -- owners without a registration, found by hopping from owner to owner along the index
       ARRAY(WITH RECURSIVE owners (owner) AS (
                 SELECT min(owner) FROM executions WHERE owner IS NOT NULL
               UNION ALL
                 SELECT (SELECT min(e.owner) FROM executions AS e WHERE e.owner > o.owner)
                 FROM owners AS o
                 WHERE o.owner IS NOT NULL
             )
             SELECT o.owner FROM owners AS o
             WHERE o.owner IS NOT NULL AND NOT EXISTS (SELECT FROM workers AS w WHERE w.worker_id = o.owner))
FROM clock
CROSS JOIN LATERAL (
    SELECT array_agg(r.execution ORDER BY r.execution, r.n) AS executions,
           array_agg(r.kind ORDER BY r.execution, r.n) AS kinds
    FROM requests AS r
    CROSS JOIN LATERAL (SELECT FROM executions AS e
                        WHERE e.key = r.execution AND e.status = 2 AND e.owner IS NOT DISTINCT FROM $1::bigint
                        OFFSET 0) AS e
) AS asked
CROSS JOIN LATERAL (
    -- an outage of the server is nobody's death: a lease counts at least from the server's start
    SELECT array_agg(w.worker_id ORDER BY w.worker_id) AS ids,
           array_agg(w.lease_expires_at ORDER BY w.worker_id) AS leases,
           array_agg(clock.now > greatest(w.lease_expires_at, CASE WHEN $3::timestamptz IS NULL
                                          THEN pg_postmaster_start_time() + clock.lease END)
                     ORDER BY w.worker_id) AS expired
    FROM workers AS w
    WHERE w.worker_id <> $1::bigint
) AS others
