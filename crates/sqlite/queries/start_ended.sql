-- The other common Start: a root that has ended meanwhile, without id or deadline of its own.
-- 1 key, 2 shard, 3 created_at, 4 input, 5 workflow, 6 status, 7 ended_at, 8 outcome
INSERT INTO executions (key, shard, workflow, status, created_at, ended_at, input, outcome)
VALUES (?1, ?2, ?5, ?6, ?3, ?7, ?4, ?8)
ON CONFLICT DO NOTHING
