-- A batch and its bundles are executions. The variant bits and bytes 10 to 13 of their keys say which executions they are, so
-- `executions` needs no column for them. The keys of a batch sort as one range: its items by index, its bundles by their last
-- item, the batch itself.
CREATE TABLE batches (
    item_count bigint,
    key        uuid NOT NULL,
    CONSTRAINT batches_key PRIMARY KEY (key)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);

COMMENT ON TABLE batches IS 'One row per batch that has not ended';
COMMENT ON COLUMN batches.item_count IS 'Number of items with which the batch was closed; null while it is open';
COMMENT ON COLUMN batches.key IS 'Key of the batch';

CREATE TABLE bundles (
    item_count bigint NOT NULL,
    key        uuid   NOT NULL,
    CONSTRAINT bundles_key PRIMARY KEY (key)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);

COMMENT ON TABLE bundles IS 'One row per bundle: an execution with items of a batch; append-only';
COMMENT ON COLUMN bundles.item_count IS 'Number of items in the bundle';
COMMENT ON COLUMN bundles.key IS 'Key of the bundle, which contains the index of its last item';

CREATE TABLE packs (
    number    bigint NOT NULL,
    completed bigint NOT NULL,
    failed    bigint NOT NULL,
    cancelled bigint NOT NULL,
    bundle    uuid   NOT NULL,
    outcomes  bytea  NOT NULL,
    CONSTRAINT packs_key PRIMARY KEY (bundle, number)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);

COMMENT ON TABLE packs IS 'One row per group of outcomes recorded for items of a bundle; append-only';
COMMENT ON COLUMN packs.number IS 'Index of the first of these items in its batch';
COMMENT ON COLUMN packs.completed IS 'Number of these items that completed';
COMMENT ON COLUMN packs.failed IS 'Number of these items that failed';
COMMENT ON COLUMN packs.cancelled IS 'Number of these items that were cancelled';
COMMENT ON COLUMN packs.bundle IS 'Key of the bundle';
COMMENT ON COLUMN packs.outcomes IS
    'Runs of equal outcomes: first index, number of items, status, length of the outcome, outcome';
