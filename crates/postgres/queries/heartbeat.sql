-- Runs a worker's heartbeat. $1: the worker, $2: its epoch, $3: the time now, null for the server's, $4: the lease in
-- microseconds, $5: the executions that it watches, $6: its workflows, $7: its version of the code, null for any, $8 and
-- $9: its window (see ownership.rs), null to leave it as it is, $10: whether to renew the lease and to read the leases of
-- others, $11: whether to search for owners without a registration, $12: the queues that are served, null for all. Hints
-- cause many heartbeats that are no renewals: such heartbeats must not leave dead rows of `workers` behind.
-- A delayed heartbeat does not move a window back that a later one has moved up. The OFFSETs keep the plan as it is
-- written, from the small tables to the large one.
-- The commit does not wait for a flush of the log. A crash of the server may then undo a renewal, which does no harm,
-- because a lease counts at least from the server's start.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now, $4::bigint * interval '1 microsecond' AS lease,
           set_config('synchronous_commit', 'off', true)
), renewed AS (
    UPDATE workers AS w
    SET lease_expires_at = clock.now + CASE WHEN w.is_client THEN interval '1 day' ELSE clock.lease END,
        from_key = greatest(w.from_key, $8::uuid), to_key = greatest(w.to_key, $9::uuid)
    FROM clock
    WHERE $10::boolean AND w.worker_id = $1::bigint AND w.epoch = $2::bigint
    RETURNING 1
), expired AS (
    -- the next heartbeats, also those of other workers, skip these executions for some seconds
    UPDATE deadlines AS d
    SET due_at = clock.now + interval '5 seconds'
    FROM clock
    WHERE d.execution = ANY(ARRAY(SELECT execution FROM deadlines
                                  WHERE due_at <= (SELECT now FROM clock)
                                  ORDER BY due_at
                                  LIMIT 500 FOR UPDATE SKIP LOCKED))
    RETURNING d.execution
)
SELECT clock.now,
       CASE WHEN $10::boolean THEN NOT EXISTS (SELECT FROM renewed)
            ELSE NOT EXISTS (SELECT FROM workers AS w WHERE w.worker_id = $1::bigint AND w.epoch = $2::bigint) END,
       asked.executions, asked.kinds,
       ARRAY(SELECT u.key
             FROM unnest($5::uuid[]) AS u (key)
             CROSS JOIN LATERAL (SELECT FROM executions AS e
                                 WHERE e.key = u.key AND (e.status >= 4 OR e.is_paused) OFFSET 0) AS e),
       -- whether any queue that is not paused has ready executions, found by hopping from queue to queue along the index
       EXISTS (WITH RECURSIVE hops (queue) AS (
                   (SELECT r.queue FROM ready AS r ORDER BY r.queue LIMIT 1)
                 UNION ALL
                   SELECT (SELECT r.queue FROM ready AS r WHERE r.queue > h.queue ORDER BY r.queue LIMIT 1)
                   FROM hops AS h
                   WHERE h.queue IS NOT NULL
               )
               SELECT FROM hops AS h
               WHERE h.queue IS NOT NULL AND ($12::text[] IS NULL OR h.queue = ANY($12::text[]))
                 AND (SELECT q.is_paused FROM queues AS q WHERE q.name = h.queue) IS NOT TRUE
                 AND (SELECT true FROM ready AS r
                      WHERE r.queue = h.queue AND r.workflow = ANY($6::text[])
                        AND (r.app_version = $7::text OR r.app_version IS NULL OR $7::text IS NULL)
                      LIMIT 1) IS NOT NULL)
       OR (SELECT true FROM inbox ORDER BY id LIMIT 1) IS NOT NULL,
       (SELECT t.due_at
        FROM (SELECT due_at, execution FROM timers ORDER BY due_at OFFSET 0) AS t
        CROSS JOIN LATERAL (SELECT FROM executions AS e
                            WHERE e.key = t.execution AND e.status IN (0, 3) AND e.workflow = ANY($6::text[])
                              AND (e.app_version = $7::text OR e.app_version IS NULL OR $7::text IS NULL)
                              AND ($12::text[] IS NULL OR coalesce(e.queue, 'default') = ANY($12::text[]))
                            OFFSET 0) AS e
        LIMIT 1),
       ARRAY(SELECT execution FROM expired),
       (SELECT d.due_at FROM deadlines AS d WHERE d.due_at > clock.now ORDER BY d.due_at LIMIT 1),
       (SELECT q.due_at
        FROM quarantine AS q
        WHERE q.workflow = ANY($6::text[])
          AND (q.app_version = $7::text OR q.app_version IS NULL OR $7::text IS NULL)
        ORDER BY q.due_at
        LIMIT 1),
       others.ids, others.leases, others.lengths, others.expired,
       EXISTS (SELECT FROM workers AS w WHERE w.worker_id <> $1::bigint),
       -- owners without a registration, found by hopping from owner to owner along the index
       ARRAY(WITH RECURSIVE owners (owner) AS (
                 SELECT min(owner) FROM executions WHERE owner IS NOT NULL AND $11::boolean
               UNION ALL
                 SELECT (SELECT min(e.owner) FROM executions AS e WHERE e.owner > o.owner)
                 FROM owners AS o
                 WHERE o.owner IS NOT NULL
             )
             SELECT o.owner FROM owners AS o
             WHERE o.owner IS NOT NULL AND NOT EXISTS (SELECT FROM workers AS w WHERE w.worker_id = o.owner)),
       (SELECT s.oldest_engine FROM shard AS s)
FROM clock
CROSS JOIN LATERAL (
    SELECT array_agg(r.execution ORDER BY r.execution, r.n) AS executions,
           array_agg(r.kind ORDER BY r.execution, r.n) AS kinds
    FROM requests AS r
    CROSS JOIN LATERAL (SELECT FROM executions AS e
                        WHERE e.key = r.execution AND e.status = 2 AND coalesce(e.owner, e.started_by) = $1::bigint
                        OFFSET 0) AS e
) AS asked
CROSS JOIN LATERAL (
    -- An outage of the server must not make workers count as dead: a lease counts at least from the server's start.
    -- Clients have a lease of a day; they are returned only once it has expired.
    SELECT array_agg(o.worker_id ORDER BY o.worker_id) AS ids,
           array_agg(o.lease_expires_at ORDER BY o.worker_id) AS leases,
           array_agg(o.lease_ms ORDER BY o.worker_id) AS lengths,
           array_agg(o.is_over ORDER BY o.worker_id) AS expired
    FROM (SELECT w.worker_id, w.lease_expires_at, w.lease_ms, w.is_client,
                 clock.now > greatest(w.lease_expires_at, CASE WHEN $3::timestamptz IS NULL
                                      THEN pg_postmaster_start_time() + clock.lease END) AS is_over
          FROM workers AS w
          WHERE w.worker_id <> $1::bigint AND $10::boolean) AS o
    WHERE o.is_over OR NOT o.is_client
) AS others
