-- Parks executions that do not run. $1: executions, $2: the reasons.
UPDATE executions AS e
SET status = 1, is_paused = true, outcome = u.outcome
FROM unnest($1::uuid[], $2::bytea[]) AS u (key, outcome)
WHERE e.key = u.key
