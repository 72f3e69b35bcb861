-- Continues an execution: a parked one under its run_no (?2 = 0), an ended one under the next run_no (?2 = 1). 1 key
UPDATE executions
SET status = 1, is_paused = 0, outcome = NULL, ended_at = NULL, run_no = run_no + ?2,
    strikes = NULL, progress = NULL,
    deadline_at = iif(?2 = 0, deadline_at, NULL)
WHERE key = ?1
