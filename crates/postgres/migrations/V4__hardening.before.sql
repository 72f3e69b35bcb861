-- What the migration fills deadlines with: read from the table, it would take a time that grows with all that has ended.
CREATE INDEX CONCURRENTLY IF NOT EXISTS executions_with_deadline ON :schema.executions (key) INCLUDE (deadline_at)
    WHERE deadline_at IS NOT NULL AND status IN (0, 1, 3);
