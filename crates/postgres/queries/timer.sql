INSERT INTO timers (due_at, execution)
SELECT u.due_at, u.key
FROM unnest($1::uuid[], $2::timestamptz[]) AS u (key, due_at)
JOIN executions AS e ON e.key = u.key
WHERE e.xmin = pg_current_xact_id()::xid AND e.status = 3
ON CONFLICT (execution) DO UPDATE SET due_at = excluded.due_at
