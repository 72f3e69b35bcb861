-- The common Start: a root that runs, without workflow_id or deadline. A batch statement repeats the row of values.
INSERT OR FAIL INTO executions (key, created_at, input, workflow, owner, status) VALUES
    (?, ?, ?, ?, ?, 2)
ON CONFLICT DO NOTHING
