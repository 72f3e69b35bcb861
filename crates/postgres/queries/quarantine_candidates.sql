-- Returns executions of the quarantine that may be tried, the earliest due first, with their queues and keys. $1: the
-- workflows, $2: the time now, null for the server's, $3: the version of the code, null for any, $4: the queues that are
-- served, null for all.
SELECT q.execution, coalesce(e.queue, 'default'), coalesce(e.queue_key, '')
FROM (SELECT q.execution, q.due_at FROM quarantine AS q
      WHERE q.due_at <= (SELECT coalesce($2::timestamptz, clock_timestamp())) AND q.workflow = ANY($1::text[])
        AND (q.app_version = $3::text OR q.app_version IS NULL OR $3::text IS NULL)
      ORDER BY q.due_at, q.execution
      OFFSET 0) AS q
CROSS JOIN LATERAL (SELECT e.queue, e.queue_key FROM executions AS e
                    WHERE e.key = q.execution AND ($4::text[] IS NULL OR coalesce(e.queue, 'default') = ANY($4::text[]))
                    OFFSET 0) AS e
LIMIT 1000
