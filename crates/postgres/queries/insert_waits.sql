INSERT INTO waits (execution, child)
SELECT u.key, u.child
FROM unnest($1::uuid[], $2::uuid[]) AS u (key, child)
CROSS JOIN LATERAL (SELECT FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid AND e.status = 3 OFFSET 0) AS e
ON CONFLICT DO NOTHING
