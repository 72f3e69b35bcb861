CREATE TABLE claims (
    worker_id  bigint NOT NULL,
    number     bigint NOT NULL,
    executions uuid[] NOT NULL,
    CONSTRAINT claims_key PRIMARY KEY (worker_id, number)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- keys do not get shorter
ALTER TABLE claims ALTER COLUMN executions SET STORAGE EXTERNAL;

COMMENT ON TABLE claims IS 'One row per claim of the last seconds: what it took is found by it, not in the index of owners';
COMMENT ON COLUMN claims.worker_id IS 'Whose claim it was';
COMMENT ON COLUMN claims.number IS 'Its number among the claims of that worker';
COMMENT ON COLUMN claims.executions IS 'Keys of what it took';

COMMENT ON COLUMN executions.started_by IS 'worker_id of the worker that started or claimed it, while it is not its owner';
COMMENT ON COLUMN executions.is_alone IS 'True if it was claimed from the quarantine with nothing beside it; false if it began without a claim';
