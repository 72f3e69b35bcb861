INSERT INTO waits (execution, child)
SELECT u.key, u.child
FROM unnest($1::uuid[], $2::uuid[]) AS u (key, child)
JOIN executions AS e ON e.key = u.key
WHERE e.xmin = pg_current_xact_id()::xid AND e.status = 3
ON CONFLICT DO NOTHING
