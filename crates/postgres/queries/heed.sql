-- What this very transaction suspends or parks, but is asked for something, is queued: whoever claims it answers
-- first. Its row is locked, so a request is either seen here, or sees the row as it was left here. $1: executions.
UPDATE executions AS e
SET status = 1, is_paused = false, outcome = NULL
FROM (SELECT DISTINCT r.execution AS key FROM requests AS r WHERE r.execution = ANY($1::uuid[])) AS u
WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid AND (e.status = 3 OR e.is_paused)
