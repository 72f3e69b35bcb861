-- The common Move: to its end. As in move.sql, rows are found by key. $1: the worker.
UPDATE executions AS e
SET status = u.status, owner = NULL, outcome = u.outcome, ended_at = u.ended_at, armed = NULL
FROM unnest($2::uuid[], $3::smallint[], $4::bytea[], $5::timestamptz[]) AS u (key, status, outcome, ended_at)
WHERE e.key = u.key AND e.status = 2 AND e.owner IS NOT DISTINCT FROM $1::bigint
RETURNING e.key
