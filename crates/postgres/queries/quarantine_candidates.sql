-- Returns executions of the quarantine that may be tried, the earliest due first, with their queues and keys. $1: the
-- workflows, $2: the time now, null for the server's, $3: the version of the code, null for any, $4: the queues that are
-- served, null for all.
WITH RECURSIVE versions (workflow, app_version) AS (
    SELECT v.workflow, v.app_version
    FROM unnest($1::text[]) AS w (workflow)
    CROSS JOIN LATERAL (SELECT q.workflow, q.app_version FROM quarantine AS q
                        WHERE q.workflow = w.workflow ORDER BY q.app_version LIMIT 1) AS v
  UNION ALL
    SELECT n.workflow, n.app_version
    FROM versions AS v
    CROSS JOIN LATERAL (SELECT q.workflow, q.app_version FROM quarantine AS q
                        WHERE q.workflow = v.workflow AND q.app_version > v.app_version
                        ORDER BY q.app_version LIMIT 1) AS n
)
SELECT q.execution, e.queue, e.queue_key
FROM versions AS v
CROSS JOIN LATERAL (SELECT q.execution, q.due_at FROM quarantine AS q
                    WHERE q.workflow = v.workflow AND q.app_version = v.app_version
                      AND q.due_at <= (SELECT coalesce($2::timestamptz, clock_timestamp()))
                    ORDER BY q.due_at
                    OFFSET 0) AS q
CROSS JOIN LATERAL (SELECT coalesce(e.queue, 'default') AS queue, coalesce(e.queue_key, '') AS queue_key
                    FROM executions AS e
                    WHERE e.key = q.execution AND ($4::text[] IS NULL OR coalesce(e.queue, 'default') = ANY($4::text[]))
                    OFFSET 0) AS e
WHERE $3::text IS NULL OR v.app_version IN ('', $3::text)
ORDER BY q.due_at, q.execution
LIMIT 1000
