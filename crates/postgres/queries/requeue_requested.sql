-- Queues the executions that this transaction suspends while a request is pending, or parks while a cancel is pending: the
-- worker that claims one handles the request first. Rows are locked: a request is either visible here, or its transaction sees the row as this
-- statement leaves it. $1: executions.
UPDATE executions AS e
SET status = 1, is_paused = false, outcome = NULL
WHERE e.key = ANY(ARRAY(SELECT u.key FROM unnest($1::uuid[]) AS u (key)
                        CROSS JOIN LATERAL (SELECT FROM requests AS r WHERE r.execution = u.key LIMIT 1) AS r))
  AND e.xmin = pg_current_xact_id()::xid
  AND (e.status = 3
       -- not EXISTS, which some servers turn into a scan of all requests
       OR e.is_paused AND (SELECT true FROM requests AS r WHERE r.execution = e.key AND r.kind = 1 LIMIT 1))
