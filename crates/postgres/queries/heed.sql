-- What this very transaction suspends or parks, but is asked for something, is queued: whoever claims it answers
-- first. Its row is locked, so a request is either seen here, or sees the row as it is left here. $1: executions.
UPDATE executions AS e
SET status = 1, is_paused = false, outcome = NULL
WHERE e.key = ANY(ARRAY(SELECT u.key FROM unnest($1::uuid[]) AS u (key)
                        CROSS JOIN LATERAL (SELECT FROM requests AS r WHERE r.execution = u.key AND r.kind = 1 LIMIT 1) AS r))
  AND e.xmin = pg_current_xact_id()::xid AND (e.status = 3 OR e.is_paused)
