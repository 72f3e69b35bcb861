-- Lists all registrations. $1: the time now, null for the server's, $2: the lease in microseconds. As in heartbeat.sql, a
-- lease counts at least from the server's start. $3: whether to count the executions that each worker runs.
SELECT w.worker_id, w.host, w.pid, w.engine, w.app_version, w.workflows, w.queues, w.is_client, w.registered_at,
       w.lease_expires_at,
       coalesce($1::timestamptz, clock_timestamp())
       <= greatest(w.lease_expires_at, CASE WHEN $1::timestamptz IS NULL
                   THEN pg_postmaster_start_time() + $2::bigint * interval '1 microsecond' END),
       CASE WHEN $3::boolean THEN
       (SELECT count(DISTINCT e.key)
        FROM assignments AS a
        CROSS JOIN unnest(a.executions) AS u (key)
        CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                            WHERE e.key = u.key AND e.owner = a.worker_id AND e.status = 2
                            OFFSET 0) AS e
        WHERE a.worker_id = w.worker_id) ELSE 0 END
FROM workers AS w
ORDER BY w.worker_id
