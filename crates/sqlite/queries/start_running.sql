-- The common Start: a root that runs, without id or deadline of its own.
-- 1 key, 2 shard, 3 created_at, 4 input, 5 workflow, 6 owner
INSERT INTO executions (key, shard, workflow, status, owner, created_at, input)
VALUES (?1, ?2, ?5, 2, ?6, ?3, ?4)
ON CONFLICT DO NOTHING
