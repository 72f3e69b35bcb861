ALTER TABLE executions ADD COLUMN priority integer, ADD COLUMN queue text COLLATE "C", ADD COLUMN queue_key text COLLATE "C";

COMMENT ON COLUMN executions.priority IS 'Smaller comes first among those of its key; null for 0';
COMMENT ON COLUMN executions.queue IS 'Queue that it stands in whenever it is queued; null for the default one';
COMMENT ON COLUMN executions.queue_key IS 'Its key there; null for none';

ALTER TABLE ready RENAME COLUMN partition TO queue_key;
ALTER TABLE ready ALTER COLUMN queue_key TYPE text COLLATE "C";
DROP INDEX ready_order;
CREATE INDEX ready_order ON ready (queue, queue_key, priority, seq);

COMMENT ON COLUMN ready.seq IS 'Order of arrival; of what has begun before, its age in microseconds, less 2^62';
COMMENT ON COLUMN ready.priority IS 'Smaller first within its key';
COMMENT ON COLUMN ready.queue_key IS 'Its key within the queue';

CREATE TABLE queues (
    version            bigint NOT NULL,
    changed_at         timestamptz NOT NULL,
    concurrency        integer,
    worker_concurrency integer,
    key_concurrency    integer,
    is_paused          boolean NOT NULL,
    is_serial          boolean NOT NULL,
    name               text COLLATE "C" NOT NULL,
    CONSTRAINT queues_key PRIMARY KEY (name)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

COMMENT ON TABLE queues IS 'One row per queue that was declared or created; whoever claims from one locks its row';
COMMENT ON COLUMN queues.version IS 'How often it was changed, its creation included';
COMMENT ON COLUMN queues.changed_at IS 'When it was changed last';
COMMENT ON COLUMN queues.concurrency IS 'Most of its executions that run at a time; null for no limit, as for all limits';
COMMENT ON COLUMN queues.worker_concurrency IS 'The same for any one worker';
COMMENT ON COLUMN queues.key_concurrency IS 'The same for any one key';
COMMENT ON COLUMN queues.is_paused IS 'True while nothing leaves it';
COMMENT ON COLUMN queues.is_serial IS 'True if its limits need one claim after the other';
COMMENT ON COLUMN queues.name IS 'Its name';

CREATE TABLE slots (
    worker_id bigint NOT NULL,
    execution uuid NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    queue_key text COLLATE "C" NOT NULL,
    CONSTRAINT slots_key PRIMARY KEY (queue, queue_key, execution)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);

COMMENT ON TABLE slots IS 'One row per running execution of a queue that limits how many run';
COMMENT ON COLUMN slots.worker_id IS 'Who runs it';
COMMENT ON COLUMN slots.execution IS 'Key of the execution';
COMMENT ON COLUMN slots.queue IS 'The queue';
COMMENT ON COLUMN slots.queue_key IS 'Its key there';

ALTER TABLE workers ADD COLUMN queues text[];

COMMENT ON COLUMN workers.queues IS 'Queues that it serves; null for all';
