-- Only for rows that this very transaction wrote: a Start or Move whose guard failed queues nothing.
INSERT INTO ready (execution, workflow, app_version)
SELECT e.key, e.workflow, e.app_version
FROM unnest($1::uuid[]) WITH ORDINALITY AS u (key, n)
CROSS JOIN LATERAL (SELECT e.key, e.workflow, e.app_version FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid AND e.status = 1 AND NOT e.is_paused
                     OFFSET 0) AS e
ORDER BY u.n
ON CONFLICT DO NOTHING
