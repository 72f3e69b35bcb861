-- The other common Start: a root that has finished before the flush, without workflow_id or deadline. A batch statement
-- repeats the row of values.
INSERT OR FAIL INTO executions (key, created_at, input, workflow, status, ended_at, outcome) VALUES
    (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
