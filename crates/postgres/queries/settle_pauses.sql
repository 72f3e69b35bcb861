-- Handles the pauses of executions that this transaction parks: deletes these requests. An execution that is parked because
-- of a pause, but has none, is queued instead, because a resume has withdrawn its pause. Rows are locked: a resume is either
-- visible here, or its transaction sees the parked execution. $1: executions, $2: whether each is parked because of a pause.
-- Returns the number of deleted requests.
WITH parked AS (
    SELECT e.key, u.is_pause
    FROM unnest($1::uuid[], $2::boolean[]) AS u (key, is_pause)
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid AND e.is_paused
                        OFFSET 0) AS e
), handled AS (
    DELETE FROM requests
    WHERE execution = ANY(ARRAY(SELECT key FROM parked)) AND kind = 4
    RETURNING execution
), withdrawn AS (
    UPDATE executions AS e
    SET is_paused = false, outcome = NULL
    WHERE e.key = ANY(ARRAY(SELECT key FROM parked WHERE is_pause EXCEPT SELECT execution FROM handled))
)
SELECT count(*) FROM handled
