WITH cancelled AS (
    UPDATE executions AS e
    SET status = 6, is_paused = false, owner = NULL, outcome = u.outcome, ended_at = u.ended_at, armed = NULL,
        dedup_id = NULL
    FROM unnest($1::uuid[], $2::bytea[], $3::timestamptz[]) AS u (key, outcome, ended_at)
    WHERE e.key = u.key
    RETURNING e.key, e.deadline_at
), undated AS (
    DELETE FROM deadlines WHERE execution = ANY(ARRAY(SELECT key FROM cancelled WHERE deadline_at IS NOT NULL))
)
SELECT key FROM cancelled
