-- Returns the time, whether an execution of a named queue is due, and whether the inbox has a row. $1: the workflows, $2:
-- the time now, null for the server's, $3: the version of the code, null for any, $4: the queues that are served, null
-- for all.
SELECT coalesce($2::timestamptz, clock_timestamp()),
       (SELECT true
        FROM (SELECT t.execution FROM timers AS t
              WHERE t.due_at <= (SELECT coalesce($2::timestamptz, clock_timestamp()))
              ORDER BY t.due_at OFFSET 0) AS t
        CROSS JOIN LATERAL (SELECT FROM executions AS e
                            WHERE e.key = t.execution AND e.status IN (0, 3) AND e.queue IS NOT NULL
                              AND e.workflow = ANY($1::text[])
                              AND (e.app_version = $3::text OR e.app_version IS NULL OR $3::text IS NULL)
                              AND ($4::text[] IS NULL OR e.queue = ANY($4::text[]))
                            OFFSET 0) AS e
        LIMIT 1) IS TRUE,
       (SELECT true FROM inbox ORDER BY id LIMIT 1) IS TRUE
