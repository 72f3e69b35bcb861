-- The other common Start: a root that has ended meanwhile, without id or deadline of its own. May have many
-- rows.
INSERT OR FAIL INTO executions (key, created_at, input, workflow, status, ended_at, outcome) VALUES
    (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
