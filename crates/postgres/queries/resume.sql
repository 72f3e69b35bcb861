-- Queues executions that were parked or have ended. $2: true for one that had ended: it begins a new run.
UPDATE executions AS e
SET status = 1, started_by = NULL, is_paused = false, outcome = NULL, ended_at = NULL, strikes = NULL, progress = NULL,
    deadline_at = CASE WHEN NOT u.had_ended THEN e.deadline_at END,
    run_no = e.run_no + CASE WHEN u.had_ended THEN 1 ELSE 0 END
FROM unnest($1::uuid[], $2::boolean[]) AS u (key, had_ended)
WHERE e.key = u.key
