-- Built anew, so that where an execution stands comes before the payloads, as all short columns do.
CREATE TABLE executions_2 (
    -- One row per execution. Keyed by time, so new rows land at the right edge. The short columns come first:
    -- lists never touch the pages that only payloads fill.
    key BLOB NOT NULL PRIMARY KEY, -- 16 bytes: UUIDv7 minted by the engine, or derived from the parent
    shard INTEGER NOT NULL, -- virtual shard of its tree, 0 to 1,023: hash of the root's key
    root BLOB, -- key of the root of its tree; NULL if it is its own root
    parent BLOB, -- key of the execution that started it
    is_detached INTEGER NOT NULL DEFAULT 0, -- 1 if the parent does not wait for it
    workflow_id TEXT, -- the id, where the caller gave one
    workflow TEXT NOT NULL, -- registered name of its workflow
    fingerprint INTEGER, -- hash of the encoded input (64 bits, as a signed number), for ids given by callers
    status INTEGER NOT NULL, -- 0 scheduled, 1 queued, 2 running, 3 waiting, 4 completed, 5 failed, 6 cancelled
    is_paused INTEGER NOT NULL DEFAULT 0, -- 1 while it is parked: queued, but not in ready
    owner INTEGER, -- worker_id of who runs it; NULL unless it is running
    run_no INTEGER NOT NULL DEFAULT 1, -- how often it was resumed or rewound, plus one
    recoveries INTEGER NOT NULL DEFAULT 0, -- how often it was continued after its worker was lost
    strikes INTEGER, -- of the last recoveries, those with nothing new recorded; from 3 on, those it was tried alone for
    progress INTEGER, -- how much was recorded of it when it was recovered last; NULL for never
    is_alone INTEGER, -- 1 if it was claimed from the quarantine with nothing beside it; 0 if it began without a claim
    app_version TEXT, -- version of the code that may run it; NULL for any
    queue TEXT, -- queue that it stands in whenever it is queued; NULL for the default one
    queue_key TEXT, -- its key there; NULL for none
    priority INTEGER, -- smaller comes first among those of its key; NULL for 0
    dedup_id TEXT, -- in its queue it alone has this; NULL once it has ended
    run_timeout_ms INTEGER, -- how long after it begins it is cancelled unless it has ended; NULL once it has begun
    created_at INTEGER NOT NULL, -- when it was accepted, in UTC microseconds like all instants
    ended_at INTEGER, -- when it ended
    deadline_at INTEGER, -- when it is cancelled unless it has ended
    armed BLOB, -- due times of its sleeps, encoded; NULL for none
    input BLOB, -- the encoded input
    outcome BLOB -- the output, a failure, or why it is parked
) STRICT, WITHOUT ROWID;
INSERT INTO executions_2 (
    key, shard, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, owner, run_no,
    recoveries, strikes, progress, is_alone, app_version, created_at, ended_at, deadline_at, armed, input, outcome
)
SELECT
    key, shard, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, owner, run_no,
    recoveries, strikes, progress, is_alone, app_version, created_at, ended_at, deadline_at, armed, input, outcome
FROM executions;
DROP TABLE executions;
ALTER TABLE executions_2 RENAME TO executions;
CREATE INDEX executions_by_owner ON executions (owner) WHERE owner IS NOT NULL;
CREATE INDEX executions_by_parent ON executions (parent) WHERE parent IS NOT NULL;
CREATE UNIQUE INDEX executions_by_workflow_id ON executions (workflow_id) WHERE workflow_id IS NOT NULL;
CREATE UNIQUE INDEX executions_by_dedup_id ON executions (queue, dedup_id) WHERE dedup_id IS NOT NULL;
CREATE INDEX executions_delayed ON executions (queue) WHERE status = 0 AND queue IS NOT NULL;

DROP INDEX ready_by_age;
CREATE TABLE ready_2 (
    -- One row per execution that can be claimed: inserted when it is queued, deleted when it is claimed.
    execution BLOB NOT NULL PRIMARY KEY, -- key of the execution
    queue TEXT NOT NULL DEFAULT 'default', -- queue it stands in
    queue_key TEXT NOT NULL DEFAULT '', -- its key there
    priority INTEGER NOT NULL DEFAULT 0, -- smaller comes first
    seq INTEGER NOT NULL, -- the microsecond since which it stands here; of what has begun before, its age, less 2^62
    workflow TEXT NOT NULL, -- name of its workflow: a worker claims those that it has registered
    app_version TEXT, -- version of the code that may run it; NULL for any
    is_woken INTEGER NOT NULL DEFAULT 0 -- 1 if it goes on after it has waited
) STRICT, WITHOUT ROWID;
-- all that is ready now counts as what has begun before
INSERT INTO ready_2 (execution, seq, workflow, app_version)
SELECT execution, seq - 4611686018427387904, workflow, app_version FROM ready;
DROP TABLE ready;
ALTER TABLE ready_2 RENAME TO ready;
CREATE INDEX ready_by_turn ON ready (workflow, queue, queue_key, priority, seq, execution);
CREATE INDEX ready_woken ON ready (workflow, queue, queue_key, priority, seq, execution) WHERE is_woken = 1;

CREATE TABLE queues (
    -- One row per queue that was declared or created.
    name TEXT NOT NULL PRIMARY KEY, -- its name
    version INTEGER NOT NULL, -- how often it was changed, its creation included
    changed_at INTEGER NOT NULL, -- when it was changed last
    is_paused INTEGER NOT NULL, -- 1 while nothing leaves it
    concurrency INTEGER, -- most of its executions that run at a time; NULL for no limit, as for all limits
    worker_concurrency INTEGER, -- the same for any one worker
    key_concurrency INTEGER, -- the same for any one key
    rate_starts INTEGER, -- most of its executions that begin in a period
    rate_period_ms INTEGER, -- the length of that period
    rate_burst INTEGER, -- how many begin at once after a pause, where they are spaced evenly
    key_rate_starts INTEGER, -- the same for any one key
    key_rate_period_ms INTEGER, -- the length of that period
    key_rate_burst INTEGER, -- how many begin at once after a pause, where they are spaced evenly
    max_depth INTEGER, -- most executions that wait for their beginning
    depth_bound INTEGER NOT NULL DEFAULT 9223372036854775807, -- where there is a maximum: so many wait, or fewer
    key_weights TEXT -- how many turns which of its keys have, as a JSON object; NULL if all have one
) STRICT, WITHOUT ROWID;

CREATE TABLE inbox (
    -- One row per start that somebody has put here in a transaction of his own: the next claim makes an execution of it. A row
    -- that cannot become one would stand in the way of all behind it.
    id INTEGER PRIMARY KEY, -- order in which they become executions
    put_at INTEGER NOT NULL, -- when it was put here
    due_at INTEGER, -- when it may begin; NULL for at once
    deadline_at INTEGER, -- as in executions
    fingerprint INTEGER, -- as in executions
    run_timeout_ms INTEGER, -- as in executions
    priority INTEGER, -- as in executions
    shard INTEGER NOT NULL, -- as in executions
    key BLOB NOT NULL CHECK (length(key) = 16), -- as in executions
    workflow TEXT NOT NULL CHECK (length(CAST(workflow AS BLOB)) BETWEEN 1 AND 255), -- as in executions
    workflow_id TEXT CHECK (length(CAST(workflow_id AS BLOB)) BETWEEN 1 AND 1024), -- as in executions
    app_version TEXT, -- as in executions
    queue TEXT CHECK (length(CAST(queue AS BLOB)) BETWEEN 1 AND 255 AND queue <> 'default'), -- as in executions
    queue_key TEXT CHECK (length(CAST(queue_key AS BLOB)) <= 1024 AND (queue_key IS NULL OR queue IS NOT NULL)), -- as in executions
    dedup_id TEXT CHECK (length(CAST(dedup_id AS BLOB)) BETWEEN 1 AND 1024 AND (dedup_id IS NULL OR queue IS NOT NULL)), -- as in executions
    attributes TEXT CHECK (attributes IS NULL OR json_valid(attributes) AND json_type(attributes) = 'object'), -- as in the table: an object of texts; NULL for none
    input BLOB NOT NULL -- as in executions
) STRICT;

CREATE TABLE attributes (
    -- One row per name with a value that an execution is found by.
    execution BLOB NOT NULL, -- key of the execution
    name TEXT NOT NULL, -- the name
    value TEXT NOT NULL, -- its value
    PRIMARY KEY (execution, name)
) STRICT, WITHOUT ROWID;
-- what has a value, by its age
CREATE INDEX attributes_by_value ON attributes (name, value, execution);

CREATE TABLE rates (
    -- Starts that count for the rates of queues and keys.
    queue TEXT NOT NULL, -- the queue
    is_key INTEGER NOT NULL, -- 1 if it is about one of its keys
    queue_key TEXT NOT NULL, -- the key; empty for the queue
    at INTEGER NOT NULL, -- when, not earlier; of an even rate, when the next one may come: one row
    starts INTEGER NOT NULL, -- how many; of an even rate 0
    PRIMARY KEY (queue, is_key, queue_key, at)
) STRICT, WITHOUT ROWID;

CREATE TABLE slots (
    -- One row per running execution of a queue that limits how many run.
    queue TEXT NOT NULL, -- the queue
    queue_key TEXT NOT NULL, -- its key there
    execution BLOB NOT NULL, -- key of the execution
    worker_id INTEGER NOT NULL, -- who runs it
    PRIMARY KEY (queue, queue_key, execution)
) STRICT, WITHOUT ROWID;

ALTER TABLE workers ADD COLUMN queues /* queues that it serves, one in a line; NULL for all */ TEXT;
