-- Columns stand in the order 8, 4, 2, 1 bytes, then those of no alignment, so that rows have no padding.

-- Texts in indexes are compared by their bytes: faster than by a language's rules, and no update of those can damage them.
-- Half of each page is left for the second versions of its rows, which their ends are: so those touch no index.
CREATE TABLE executions (
    created_at  timestamptz NOT NULL,
    ended_at    timestamptz,
    deadline_at timestamptz,
    owner       bigint,
    started_by  bigint,
    fingerprint bigint,
    progress    bigint,
    run_no      integer  NOT NULL DEFAULT 1,
    recoveries  integer  NOT NULL DEFAULT 0,
    strikes     integer,
    shard       smallint NOT NULL,
    status      smallint NOT NULL,
    is_paused   boolean  NOT NULL DEFAULT false,
    is_detached boolean  NOT NULL DEFAULT false,
    is_alone    boolean,
    key         uuid     NOT NULL,
    root        uuid,
    parent      uuid,
    workflow    text     NOT NULL,
    workflow_id text COLLATE "C",
    app_version text,
    input       bytea    NOT NULL,
    outcome     bytea,
    armed       bytea,
    CONSTRAINT executions_key PRIMARY KEY (key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
        autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000);
-- an index entry has at most 2,704 bytes: longer ids are unique by a hash of their bytes
CREATE UNIQUE INDEX executions_workflow_id ON executions (workflow_id) WHERE octet_length(workflow_id) <= 1024;
CREATE UNIQUE INDEX executions_long_workflow_id ON executions (sha256(decode(replace(workflow_id, '\', '\\'), 'escape')))
    WHERE octet_length(workflow_id) > 1024;
CREATE INDEX executions_owner ON executions (owner) WHERE owner IS NOT NULL;
CREATE INDEX executions_parent ON executions (parent) WHERE parent IS NOT NULL;

COMMENT ON TABLE executions IS 'One row per execution of a workflow';
COMMENT ON COLUMN executions.created_at IS 'When it was accepted';
COMMENT ON COLUMN executions.ended_at IS 'When it ended; null until then';
COMMENT ON COLUMN executions.deadline_at IS 'When it is cancelled unless it has ended; null for never';
COMMENT ON COLUMN executions.owner IS 'worker_id of the worker that runs it; null unless it is running';
COMMENT ON COLUMN executions.started_by IS
    'worker_id of the worker that started it; while it is running and has no owner, that worker runs it';
COMMENT ON COLUMN executions.fingerprint IS 'Hash of the encoded input, for ids given by callers';
COMMENT ON COLUMN executions.run_no IS 'How often it was resumed or rewound, plus one';
COMMENT ON COLUMN executions.recoveries IS 'How often it was continued after its worker was lost';
COMMENT ON COLUMN executions.progress IS 'How much was recorded of it when it was recovered last; null for never';
COMMENT ON COLUMN executions.strikes IS
    'How many of the last recoveries found nothing new recorded; from 3 on, how many more it was tried alone for';
COMMENT ON COLUMN executions.is_alone IS 'True if it was claimed from the quarantine with nothing beside it';
COMMENT ON COLUMN executions.app_version IS 'Version of the code that may run it; null for any';
COMMENT ON COLUMN executions.shard IS 'Virtual shard of its tree, 0 to 1023: a hash of the root';
COMMENT ON COLUMN executions.status IS
    '0 scheduled, 1 queued, 2 running, 3 waiting, 4 completed, 5 failed, 6 cancelled';
COMMENT ON COLUMN executions.is_paused IS 'True while it is parked: queued, but not claimable';
COMMENT ON COLUMN executions.is_detached IS 'True for a child that its parent does not wait for';
COMMENT ON COLUMN executions.key IS 'Its key: time-ordered, or derived from the parent''s for a child';
COMMENT ON COLUMN executions.root IS 'Key of the root of its tree; null for a root';
COMMENT ON COLUMN executions.parent IS 'Key of the execution that started it; null for a root';
COMMENT ON COLUMN executions.workflow IS 'Registered name of its workflow';
COMMENT ON COLUMN executions.workflow_id IS 'The id that its caller gave; null where none was given';
COMMENT ON COLUMN executions.input IS 'The encoded input';
COMMENT ON COLUMN executions.outcome IS 'The output, a failure, or why it is parked; null while there is none';
COMMENT ON COLUMN executions.armed IS 'Due times of its sleeps: length of path, path, microseconds; null for none';

CREATE TABLE checkpoints (
    recorded_at timestamptz NOT NULL,
    took_ms     bigint   NOT NULL,
    order_no    bigint   NOT NULL,
    fingerprint bigint,
    run_no      integer  NOT NULL,
    kind        smallint NOT NULL,
    execution   uuid     NOT NULL,
    path        bytea    NOT NULL,
    step_name   text     NOT NULL,
    outcome     bytea    NOT NULL,
    CONSTRAINT checkpoints_key PRIMARY KEY (execution, path)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000);

COMMENT ON TABLE checkpoints IS 'One row per delivery recorded for an execution; append-only';
COMMENT ON COLUMN checkpoints.recorded_at IS 'When it was delivered';
COMMENT ON COLUMN checkpoints.took_ms IS 'From the call to its delivery, in milliseconds';
COMMENT ON COLUMN checkpoints.fingerprint IS 'Hash of the arguments, where they were given';
COMMENT ON COLUMN checkpoints.run_no IS 'The run that recorded it';
COMMENT ON COLUMN checkpoints.order_no IS 'Position of its delivery among all deliveries to the execution';
COMMENT ON COLUMN checkpoints.kind IS '1 step, 2 failed step, 3 abandoned, 4 timer, 5 child';
COMMENT ON COLUMN checkpoints.execution IS 'Key of the execution';
COMMENT ON COLUMN checkpoints.path IS 'Structural position of the call; bytes sort as positions do';
COMMENT ON COLUMN checkpoints.step_name IS 'Name of the step, the child''s workflow, or sleep';
COMMENT ON COLUMN checkpoints.outcome IS 'The value, a failure, a child''s key, or empty';

CREATE TABLE attempts (
    failed_at timestamptz NOT NULL,
    attempt   bigint NOT NULL,
    execution uuid   NOT NULL,
    path      bytea  NOT NULL,
    failure   bytea  NOT NULL,
    CONSTRAINT attempts_key PRIMARY KEY (execution, path, attempt)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);

COMMENT ON TABLE attempts IS 'One row per failed attempt of a step; append-only';
COMMENT ON COLUMN attempts.failed_at IS 'When it failed';
COMMENT ON COLUMN attempts.attempt IS 'Number of the attempt, from 1';
COMMENT ON COLUMN attempts.execution IS 'Key of the execution';
COMMENT ON COLUMN attempts.path IS 'Structural position of the step';
COMMENT ON COLUMN attempts.failure IS 'The encoded failure';

CREATE TABLE chunks (
    value     bigint NOT NULL,
    n         bigint NOT NULL,
    execution uuid   NOT NULL,
    bytes     bytea  NOT NULL,
    CONSTRAINT chunks_key PRIMARY KEY (execution, value, n)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
-- encoded values are often compressed already; out of line either way
ALTER TABLE chunks ALTER COLUMN bytes SET STORAGE EXTERNAL;

COMMENT ON TABLE chunks IS 'One row per piece of a value too large for the row that refers to it';
COMMENT ON COLUMN chunks.value IS 'Number of the value, unique in its execution';
COMMENT ON COLUMN chunks.n IS 'Number of the piece, from 0';
COMMENT ON COLUMN chunks.execution IS 'Key of the execution';
COMMENT ON COLUMN chunks.bytes IS 'The bytes';

CREATE TABLE ready (
    seq       bigint  NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    priority  integer NOT NULL DEFAULT 0,
    execution uuid    NOT NULL,
    queue     text COLLATE "C" NOT NULL DEFAULT 'default',
    partition text    NOT NULL DEFAULT '',
    workflow  text    NOT NULL,
    app_version text,
    CONSTRAINT ready_key PRIMARY KEY (execution)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);
CREATE INDEX ready_order ON ready (queue, priority, seq);

COMMENT ON TABLE ready IS 'One row per execution that can be claimed';
COMMENT ON COLUMN ready.seq IS 'Order of arrival';
COMMENT ON COLUMN ready.priority IS 'Smaller first within its queue';
COMMENT ON COLUMN ready.execution IS 'Key of the execution';
COMMENT ON COLUMN ready.queue IS 'The queue';
COMMENT ON COLUMN ready.partition IS 'The queue''s partition';
COMMENT ON COLUMN ready.workflow IS 'Registered name of its workflow';
COMMENT ON COLUMN ready.app_version IS 'Version of the code that may run it; null for any';

CREATE TABLE quarantine (
    due_at      timestamptz NOT NULL,
    execution   uuid NOT NULL,
    workflow    text NOT NULL,
    app_version text,
    CONSTRAINT quarantine_key PRIMARY KEY (execution)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);
CREATE INDEX quarantine_due ON quarantine (due_at);

COMMENT ON TABLE quarantine IS 'One row per queued execution that seems to kill its worker; instead of one in ready';
COMMENT ON COLUMN quarantine.due_at IS 'When it may be tried';
COMMENT ON COLUMN quarantine.execution IS 'Key of the execution';
COMMENT ON COLUMN quarantine.workflow IS 'Registered name of its workflow';
COMMENT ON COLUMN quarantine.app_version IS 'Version of the code that may run it; null for any';

CREATE TABLE timers (
    due_at    timestamptz NOT NULL,
    execution uuid NOT NULL,
    CONSTRAINT timers_key PRIMARY KEY (execution)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);
CREATE INDEX timers_due ON timers (due_at);

COMMENT ON TABLE timers IS 'One row per suspended execution that a due time wakes';
COMMENT ON COLUMN timers.due_at IS 'Its earliest due time';
COMMENT ON COLUMN timers.execution IS 'Key of the execution';

CREATE TABLE waits (
    execution uuid NOT NULL,
    child     uuid NOT NULL,
    CONSTRAINT waits_key PRIMARY KEY (execution, child)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);
CREATE INDEX waits_child ON waits (child);

COMMENT ON TABLE waits IS 'One row per child that a suspended execution waits for';
COMMENT ON COLUMN waits.execution IS 'Key of the execution that waits';
COMMENT ON COLUMN waits.child IS 'Key of the child whose end wakes it';

CREATE TABLE requests (
    requested_at timestamptz NOT NULL,
    kind         smallint NOT NULL,
    execution    uuid NOT NULL,
    n            uuid NOT NULL,
    CONSTRAINT requests_key PRIMARY KEY (execution, n)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01);

COMMENT ON TABLE requests IS 'One row per thing asked of a running execution that its owner has not answered';
COMMENT ON COLUMN requests.requested_at IS 'When';
COMMENT ON COLUMN requests.kind IS '1 cancel, 2 resume';
COMMENT ON COLUMN requests.execution IS 'Key of the execution';
COMMENT ON COLUMN requests.n IS 'Number of the request, minted by who asks; sorts by time';

CREATE TABLE workers (
    worker_id        bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    epoch            bigint NOT NULL DEFAULT 1,
    registered_at    timestamptz NOT NULL,
    lease_expires_at timestamptz NOT NULL,
    pid              bigint NOT NULL,
    is_client        boolean NOT NULL,
    from_key         uuid NOT NULL,
    to_key           uuid NOT NULL,
    host             text NOT NULL,
    engine           text NOT NULL,
    app_version      text,
    workflows        text[] NOT NULL,
    CONSTRAINT workers_key PRIMARY KEY (worker_id)
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

COMMENT ON TABLE workers IS 'One row per registration of a worker that is not closed and not taken over';
COMMENT ON COLUMN workers.worker_id IS 'Number of the registration; never used twice';
COMMENT ON COLUMN workers.epoch IS 'The epoch that its lanes began with';
COMMENT ON COLUMN workers.registered_at IS 'When it registered';
COMMENT ON COLUMN workers.lease_expires_at IS 'Until when it counts as alive without renewing';
COMMENT ON COLUMN workers.pid IS 'Number of its process on its machine';
COMMENT ON COLUMN workers.is_client IS 'True if it runs nothing; its lease is a day';
COMMENT ON COLUMN workers.from_key IS 'Lowest key of what it runs without being entered as its owner';
COMMENT ON COLUMN workers.to_key IS 'Above the highest key of such';
COMMENT ON COLUMN workers.host IS 'Name of its machine';
COMMENT ON COLUMN workers.engine IS 'Version of the engine';
COMMENT ON COLUMN workers.app_version IS 'Version of the program''s code, where it was told';
COMMENT ON COLUMN workers.workflows IS 'Names of the workflows that it can run';

-- one updated row per flush: room on the page and no further index, so that every update stays on its page
CREATE TABLE lanes (
    worker_id   bigint   NOT NULL,
    epoch       bigint   NOT NULL,
    last_number bigint   NOT NULL DEFAULT 0,
    lane        smallint NOT NULL,
    CONSTRAINT lanes_key PRIMARY KEY (worker_id, lane)
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

COMMENT ON TABLE lanes IS 'One row per lane of a registration: the fence of its flushes';
COMMENT ON COLUMN lanes.worker_id IS 'The registration';
COMMENT ON COLUMN lanes.epoch IS 'The fencing token: a flush of another epoch is refused';
COMMENT ON COLUMN lanes.last_number IS 'Number of the last flush that is durable';
COMMENT ON COLUMN lanes.lane IS 'Number of the lane';
