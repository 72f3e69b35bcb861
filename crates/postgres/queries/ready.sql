-- Makes started executions ready for the first time, but only rows that this transaction wrote: a Start whose guard
-- failed queues nothing.
INSERT INTO ready (execution, route, queue_key, priority)
SELECT e.key, e.workflow || E'\x01' || coalesce(e.app_version, '') || E'\x01' || coalesce(e.queue, 'default'),
       coalesce(e.queue_key, ''), coalesce(e.priority, 0)
FROM unnest($1::uuid[]) WITH ORDINALITY AS u (key, n)
CROSS JOIN LATERAL (SELECT e.key, e.workflow, e.app_version, e.queue, e.queue_key, e.priority FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid AND e.status = 1 AND NOT e.is_paused
                    OFFSET 0) AS e
ORDER BY u.n
ON CONFLICT DO NOTHING
