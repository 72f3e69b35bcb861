-- The store by itself: which shard of an engine's executions it is, which store, and which engines may use it.
CREATE TABLE shard (
    is_only       boolean NOT NULL DEFAULT true,
    number        smallint NOT NULL DEFAULT 0,
    oldest_engine integer NOT NULL,
    store_id      uuid NOT NULL DEFAULT gen_random_uuid(),
    CONSTRAINT shard_is_only PRIMARY KEY (is_only),
    CONSTRAINT shard_one_row CHECK (is_only),
    CONSTRAINT shard_number CHECK (number BETWEEN 0 AND 1023)
);

COMMENT ON TABLE shard IS 'One row: what the store is to its engines';
COMMENT ON COLUMN shard.is_only IS 'Always true: there is one row';
COMMENT ON COLUMN shard.number IS 'Number of the shard, 0 to 1023, that the keys of its executions name; 0 for a store alone';
COMMENT ON COLUMN shard.oldest_engine IS 'Oldest version of the schema that an engine may be written for to use this one';
COMMENT ON COLUMN shard.store_id IS 'Identity of the store: a connection to another database shows by it';

INSERT INTO shard (oldest_engine) VALUES (4);

-- a key names its shard
ALTER TABLE executions DROP COLUMN shard;
ALTER TABLE inbox DROP COLUMN shard;

-- Keys of before end in ten random bits, where a key names its shard now; a store that is migrated is shard 0. An outbox has
-- told the text of such a key as the workflow_id, which stays. A repetition of an execution keeps the key of that.
UPDATE inbox AS i
SET key = encode(set_byte(set_byte(uuid_send(i.key), 14, get_byte(uuid_send(i.key), 14) & 252), 15, 0), 'hex')::uuid,
    workflow_id = coalesce(i.workflow_id, i.key::text)
WHERE (get_byte(uuid_send(i.key), 14) & 3 <> 0 OR get_byte(uuid_send(i.key), 15) <> 0)
  AND NOT EXISTS (SELECT FROM executions AS e WHERE e.key = i.key);

-- A foreign transaction hears at once of a value that no execution can have. Rows of before are not looked at: a claim
-- brings their values into bounds.
ALTER TABLE inbox
    ADD CONSTRAINT inbox_put_at CHECK (put_at >= '1970-01-01 00:00:00+00' AND put_at < '2400-01-01 00:00:00+00') NOT VALID,
    ADD CONSTRAINT inbox_due_at CHECK (due_at >= '1970-01-01 00:00:00+00' AND due_at < '2400-01-01 00:00:00+00') NOT VALID,
    ADD CONSTRAINT inbox_deadline_at
        CHECK (deadline_at >= '1970-01-01 00:00:00+00' AND deadline_at < '2400-01-01 00:00:00+00') NOT VALID,
    ADD CONSTRAINT inbox_run_timeout_ms CHECK (run_timeout_ms BETWEEN 0 AND 3162240000000) NOT VALID,
    ADD CONSTRAINT inbox_attributes_are_texts
        CHECK (NOT jsonb_path_exists(attributes, '$.* ? (@.type() != "string")')) NOT VALID,
    ADD CONSTRAINT inbox_app_version CHECK (octet_length(app_version) BETWEEN 1 AND 1024) NOT VALID;

ALTER TABLE executions
    ADD CONSTRAINT executions_run_timeout_ms CHECK (run_timeout_ms BETWEEN 0 AND 3162240000000) NOT VALID;

CREATE TABLE dead_letters (
    -- not the number of the row of inbox: a foreign transaction may choose that
    id          bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    put_at      timestamptz NOT NULL,
    refused_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    key         uuid NOT NULL,
    reason      text NOT NULL,
    workflow    text COLLATE "C" NOT NULL,
    workflow_id text COLLATE "C",
    queue       text COLLATE "C",
    letter      jsonb NOT NULL,
    input       bytea NOT NULL,
    CONSTRAINT dead_letters_id PRIMARY KEY (id)
);

COMMENT ON TABLE dead_letters IS 'One row per row of the inbox that could not become an execution';
COMMENT ON COLUMN dead_letters.id IS 'Order in which they were refused';
COMMENT ON COLUMN dead_letters.put_at IS 'As in inbox';
COMMENT ON COLUMN dead_letters.refused_at IS 'When a claim refused it';
COMMENT ON COLUMN dead_letters.key IS 'As in inbox';
COMMENT ON COLUMN dead_letters.reason IS 'Why, for people';
COMMENT ON COLUMN dead_letters.workflow IS 'As in inbox';
COMMENT ON COLUMN dead_letters.workflow_id IS 'As in inbox';
COMMENT ON COLUMN dead_letters.queue IS 'As in inbox';
COMMENT ON COLUMN dead_letters.letter IS 'The row without its input';
COMMENT ON COLUMN dead_letters.input IS 'As in inbox';

ALTER TABLE workers ADD COLUMN lease_ms bigint;
COMMENT ON COLUMN workers.lease_ms IS 'How long it counts as alive without renewing, in milliseconds';

CREATE TABLE deadlines (
    due_at    timestamptz NOT NULL,
    execution uuid NOT NULL,
    CONSTRAINT deadlines_key PRIMARY KEY (execution)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);
CREATE INDEX deadlines_due ON deadlines (due_at);

COMMENT ON TABLE deadlines IS 'One row per execution with a deadline that has not ended and does not run';
COMMENT ON COLUMN deadlines.due_at IS 'Its deadline; once a worker has seen it pass, when another one may';
COMMENT ON COLUMN deadlines.execution IS 'Key of the execution';

INSERT INTO deadlines (due_at, execution)
SELECT deadline_at, key FROM executions WHERE deadline_at IS NOT NULL AND status IN (0, 1, 3);
-- built by the preparation of this migration where many executions are stored
DROP INDEX IF EXISTS executions_with_deadline;

-- comments that were incomplete
COMMENT ON COLUMN executions.created_at IS 'When its start was called; it is durable somewhat later';
COMMENT ON TABLE checkpoints IS 'One row per delivery recorded for an execution; a resume withdraws the failures at the end';
COMMENT ON COLUMN checkpoints.kind IS '1 step, 2 failed step, 3 abandoned, 4 timer, 5 child that ended, 6 child that was started';
COMMENT ON TABLE attempts IS 'One row per failed attempt of a step; a resume withdraws those of the failures at the end';
COMMENT ON TABLE timers IS 'One row per scheduled or suspended execution that begins, or wakes, at a due time';
