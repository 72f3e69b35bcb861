UPDATE executions AS e
SET status = 6, is_paused = false, owner = NULL, outcome = u.outcome, ended_at = u.ended_at, armed = NULL,
    dedup_id = NULL
FROM unnest($1::uuid[], $2::bytea[], $3::timestamptz[]) AS u (key, outcome, ended_at)
WHERE e.key = u.key
