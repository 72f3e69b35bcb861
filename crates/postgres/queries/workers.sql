-- Lists all registrations. $1: the time now, null for the server's, $2: the lease in microseconds. As in heartbeat.sql, a
-- lease counts at least from the server's start.
SELECT w.worker_id, w.host, w.pid, w.engine, w.app_version, w.workflows, w.queues, w.is_client, w.registered_at,
       w.lease_expires_at,
       coalesce($1::timestamptz, clock_timestamp())
       <= greatest(w.lease_expires_at, CASE WHEN $1::timestamptz IS NULL
                   THEN pg_postmaster_start_time() + $2::bigint * interval '1 microsecond' END),
       (SELECT count(*) FROM executions AS e WHERE e.owner = w.worker_id)
       + (SELECT count(*)
          FROM (SELECT e.key FROM executions AS e
                WHERE e.key >= w.from_key AND e.key < w.to_key AND e.started_by = w.worker_id AND e.status = 2
                UNION
                SELECT e.key
                FROM claims AS c
                CROSS JOIN unnest(c.executions) AS u (key)
                CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                                    WHERE e.key = u.key AND e.started_by = c.worker_id AND e.status = 2
                                    OFFSET 0) AS e
                WHERE c.worker_id = w.worker_id) AS e)
FROM workers AS w
ORDER BY w.worker_id
