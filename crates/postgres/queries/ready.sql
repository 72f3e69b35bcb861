-- Only for rows that this very transaction wrote: a Start or Move whose guard failed queues nothing.
INSERT INTO ready (execution, workflow)
SELECT e.key, e.workflow
FROM unnest($1::uuid[]) WITH ORDINALITY AS u (key, n)
JOIN executions AS e ON e.key = u.key
WHERE e.xmin = pg_current_xact_id()::xid AND e.status = 1 AND NOT e.is_paused
ORDER BY u.n
ON CONFLICT DO NOTHING
