-- The events of executions by name: a large table is indexed while engines of earlier programs still run.
CREATE INDEX CONCURRENTLY IF NOT EXISTS checkpoints_events ON :schema.checkpoints (execution, step_name COLLATE "C", order_no)
    WHERE kind = 9;
