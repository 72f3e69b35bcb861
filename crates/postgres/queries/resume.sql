-- Queues executions that were parked or have ended. $1: executions, $2: whether each had ended, so that its run_no grows
-- by one. The statement also deletes the chunks of the outcomes that it clears: byte 81, then the number of the value.
WITH cleared AS (
    DELETE FROM chunks
    WHERE ctid = ANY (ARRAY(
        SELECT c.place
        FROM unnest($1::uuid[]) AS u (key)
        CROSS JOIN LATERAL (SELECT substring(e.outcome FROM 2 FOR 8) AS value FROM executions AS e
                            WHERE e.key = u.key AND encode(substring(e.outcome FROM 1 FOR 1), 'hex') = '81'
                            OFFSET 0) AS e
        CROSS JOIN LATERAL (SELECT c.ctid AS place FROM chunks AS c
                            WHERE c.execution = u.key
                              AND c.value = ('x' || encode(e.value, 'hex'))::bit(64)::bigint
                            OFFSET 0) AS c
    ))
)
UPDATE executions AS e
SET status = 1, is_paused = false, outcome = NULL, ended_at = NULL, strikes = NULL, progress = NULL,
    deadline_at = CASE WHEN NOT u.had_ended THEN e.deadline_at END,
    run_no = e.run_no + CASE WHEN u.had_ended THEN 1 ELSE 0 END
FROM unnest($1::uuid[], $2::boolean[]) AS u (key, had_ended)
WHERE e.key = u.key
