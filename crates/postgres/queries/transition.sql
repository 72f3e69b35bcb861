-- Applies Transitions of executions that the lane's worker runs. The condition on the owner contains coalesce, so that
-- the planner cannot use the index of owners, and finds rows by key.
WITH moved AS (
    UPDATE executions AS e
    SET status = u.status, is_paused = u.is_paused, owner = CASE WHEN u.status = 2 THEN e.owner END,
        started_by = CASE WHEN u.status = 2 THEN e.started_by END,
        outcome = u.outcome, ended_at = u.ended_at, armed = u.armed
    FROM unnest($2::uuid[], $3::smallint[], $4::boolean[], $5::bytea[], $6::timestamptz[], $7::bytea[])
        AS u (key, status, is_paused, outcome, ended_at, armed)
    WHERE e.key = u.key AND e.status = 2 AND coalesce(e.owner, e.started_by) = $1::bigint
    RETURNING e.key, e.status, e.deadline_at
), dated AS (
    INSERT INTO deadlines (due_at, execution)
    SELECT deadline_at, key FROM moved WHERE deadline_at IS NOT NULL AND status IN (1, 3)
    ON CONFLICT DO NOTHING
)
SELECT key FROM moved
