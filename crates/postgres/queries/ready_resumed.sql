-- Makes executions ready again that have begun before. They go ahead of executions that have not begun, the oldest first.
-- As in ready.sql, only rows that this transaction wrote count.
INSERT INTO ready (execution, route, queue_key, priority, seq) OVERRIDING SYSTEM VALUE
SELECT e.key, e.workflow || E'\x01' || coalesce(e.app_version, '') || E'\x01' || coalesce(e.queue, 'default'),
       coalesce(e.queue_key, ''), coalesce(e.priority, 0),
       (extract(epoch FROM e.created_at) * 1000000)::bigint - 4611686018427387904
FROM unnest($1::uuid[]) AS u (key)
CROSS JOIN LATERAL (SELECT e.key, e.workflow, e.app_version, e.queue, e.queue_key, e.priority, e.created_at
                    FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid AND e.status = 1 AND NOT e.is_paused
                    OFFSET 0) AS e
ON CONFLICT DO NOTHING
