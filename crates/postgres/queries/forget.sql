-- What was asked of executions that this very transaction ends comes too late. $1: executions. Most often nobody has
-- asked anything: then that is all it looks at.
DELETE FROM requests
WHERE execution = ANY(ARRAY(
    SELECT e.key
    FROM unnest($1::uuid[]) AS u (key)
    CROSS JOIN LATERAL (SELECT r.execution FROM requests AS r WHERE r.execution = u.key LIMIT 1) AS r
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = r.execution AND e.xmin = pg_current_xact_id()::xid AND e.status >= 4
                        OFFSET 0) AS e
    WHERE (SELECT EXISTS (SELECT FROM requests))))
