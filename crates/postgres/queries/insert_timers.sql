INSERT INTO timers (due_at, execution, route, is_scheduled)
SELECT u.due_at, u.key, e.workflow || E'\x01' || coalesce(e.app_version, '') || E'\x01' || coalesce(e.queue, 'default'),
       e.status = 0
FROM unnest($1::uuid[], $2::timestamptz[]) AS u (key, due_at)
CROSS JOIN LATERAL (SELECT e.workflow, e.app_version, e.queue, e.status FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid AND e.status IN (0, 3) OFFSET 0) AS e
ON CONFLICT (execution) DO UPDATE SET due_at = excluded.due_at, is_scheduled = excluded.is_scheduled
