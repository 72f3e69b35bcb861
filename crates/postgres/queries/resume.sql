-- Queues executions that were parked or have ended. $1: executions, $2: whether each had ended, so that its run_no grows
-- by one.
UPDATE executions AS e
SET status = 1, started_by = NULL, is_paused = false, outcome = NULL, ended_at = NULL, strikes = NULL, progress = NULL,
    deadline_at = CASE WHEN NOT u.had_ended THEN e.deadline_at END,
    run_no = e.run_no + CASE WHEN u.had_ended THEN 1 ELSE 0 END
FROM unnest($1::uuid[], $2::boolean[]) AS u (key, had_ended)
WHERE e.key = u.key
