-- Applies Transitions of executions that the lane's worker runs. $1: the worker, $8: the lane. Returns one row as in
-- finish.sql.
WITH moved AS (
    UPDATE executions AS e
    SET status = u.status, is_paused = u.is_paused, owner = CASE WHEN u.status = 2 THEN e.owner END,
        outcome = u.outcome, ended_at = u.ended_at, armed = u.armed
    FROM unnest($2::uuid[], $3::smallint[], $4::boolean[], $5::bytea[], $6::timestamptz[], $7::bytea[])
        AS u (key, status, is_paused, outcome, ended_at, armed)
    WHERE e.key = u.key AND e.status = 2 AND e.owner = $1::bigint
    RETURNING e.key, e.status, e.deadline_at
), dated AS (
    INSERT INTO deadlines (due_at, execution)
    SELECT deadline_at, key FROM moved WHERE deadline_at IS NOT NULL AND status IN (1, 3)
    ON CONFLICT DO NOTHING
)
SELECT count(*),
       CASE WHEN count(*) < cardinality($2::uuid[])
            THEN keep_outcomes($1::bigint, $8::smallint, jsonb_build_object('not_found', (
                SELECT jsonb_agg(u.key) FROM unnest($2::uuid[]) AS u (key)
                WHERE u.key NOT IN (SELECT key FROM moved)))) END AS report
FROM moved
