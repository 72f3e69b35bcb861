CREATE TABLE executions (
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
    is_alone INTEGER, -- 1 if it was claimed from the quarantine with nothing beside it
    app_version TEXT, -- version of the code that may run it; NULL for any
    created_at INTEGER NOT NULL, -- when it was accepted, in UTC microseconds like all instants
    ended_at INTEGER, -- when it ended
    deadline_at INTEGER, -- when it is cancelled unless it has ended
    armed BLOB, -- due times of its sleeps, encoded; NULL for none
    input BLOB, -- the encoded input
    outcome BLOB -- the output, a failure, or why it is parked
) STRICT, WITHOUT ROWID;

-- what a worker runs; cleared when it ends
CREATE INDEX executions_by_owner ON executions (owner) WHERE owner IS NOT NULL;
-- the children of an execution, so that a cancel goes down to them
CREATE INDEX executions_by_parent ON executions (parent) WHERE parent IS NOT NULL;
-- an id is given once
CREATE UNIQUE INDEX executions_by_workflow_id ON executions (workflow_id) WHERE workflow_id IS NOT NULL;

CREATE TABLE checkpoints (
    -- One row per delivery to an execution: what a replay finds recorded. Append-only.
    execution BLOB NOT NULL, -- key of the execution
    path BLOB NOT NULL, -- structural position of the call, order-preserving bytes
    run_no INTEGER NOT NULL, -- the run that recorded it
    order_no INTEGER NOT NULL, -- position among all deliveries to the execution
    kind INTEGER NOT NULL, -- 1 step, 2 failed, 3 abandoned, 4 timer, 5 child
    step_name TEXT NOT NULL, -- name of the step, the child's workflow, or sleep
    fingerprint INTEGER, -- hash of the arguments, where they were given
    recorded_at INTEGER NOT NULL, -- when it was delivered
    took_ms INTEGER NOT NULL, -- from the call to its delivery
    outcome BLOB, -- the value, a failure, a child's key, or NULL
    PRIMARY KEY (execution, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
    -- One row per failed attempt of a step.
    execution BLOB NOT NULL, -- key of the execution
    path BLOB NOT NULL, -- position of the step
    attempt INTEGER NOT NULL, -- number of the attempt, from 1
    failed_at INTEGER NOT NULL, -- when it failed
    failure BLOB, -- the encoded failure
    PRIMARY KEY (execution, path, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE chunks (
    -- One row per piece of a large value. The row that refers to the value is written last.
    execution BLOB NOT NULL, -- key of the execution
    value INTEGER NOT NULL, -- number of the value (64 bits, as a signed number)
    n INTEGER NOT NULL, -- number of the piece, from 0
    bytes BLOB NOT NULL, -- the piece, at most 1 MiB
    PRIMARY KEY (execution, value, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE ready (
    -- One row per execution that can be claimed: inserted when it is queued, deleted when it is claimed.
    execution BLOB NOT NULL PRIMARY KEY, -- key of the execution
    queue TEXT NOT NULL DEFAULT 'default', -- queue it stands in
    partition TEXT NOT NULL DEFAULT '', -- key within the queue
    priority INTEGER NOT NULL DEFAULT 0, -- smaller comes first
    seq INTEGER NOT NULL, -- age: the microsecond since which it stands here (for recovered ones, of its start)
    workflow TEXT NOT NULL, -- name of its workflow: a worker claims those that it has registered
    app_version TEXT -- version of the code that may run it; NULL for any
) STRICT, WITHOUT ROWID;

-- claims: the oldest of each workflow
CREATE INDEX ready_by_age ON ready (workflow, seq, execution);

CREATE TABLE quarantine (
    -- One row per queued execution that seems to kill its worker; instead of a row in ready.
    execution BLOB NOT NULL PRIMARY KEY, -- key of the execution
    due_at INTEGER NOT NULL, -- when it may be tried
    workflow TEXT NOT NULL, -- name of its workflow
    app_version TEXT -- version of the code that may run it; NULL for any
) STRICT, WITHOUT ROWID;

-- what may be tried
CREATE INDEX quarantine_by_due ON quarantine (due_at, execution);

CREATE TABLE timers (
    -- One row per suspended execution that has a due time.
    execution BLOB NOT NULL PRIMARY KEY, -- key of the execution
    due_at INTEGER NOT NULL -- earliest time at which it becomes claimable
) STRICT, WITHOUT ROWID;

-- timers that are due
CREATE INDEX timers_by_due ON timers (due_at, execution);

CREATE TABLE waits (
    -- One row per child that a suspended execution waits for; any of them ending wakes it.
    execution BLOB NOT NULL, -- key of the waiting execution
    child BLOB NOT NULL, -- key of the child
    PRIMARY KEY (execution, child)
) STRICT, WITHOUT ROWID;

-- who waits for a child
CREATE INDEX waits_by_child ON waits (child);

CREATE TABLE requests (
    -- One row per request to a running execution that its owner has not answered.
    execution BLOB NOT NULL, -- key of the execution
    n BLOB NOT NULL, -- number of the request, 16 bytes, minted by who asks
    kind INTEGER NOT NULL, -- 1 cancel, 2 resume
    requested_at INTEGER NOT NULL, -- when it was asked for
    PRIMARY KEY (execution, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    -- One row per registration that is alive or not yet taken over. Whether it is alive is told by the lock
    -- on byte worker_id of the file <database>-presence.
    worker_id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice
    epoch INTEGER NOT NULL, -- the fencing token of its lanes
    registered_at INTEGER NOT NULL, -- when it registered
    host TEXT NOT NULL, -- name of its machine
    pid INTEGER NOT NULL, -- number of its process there
    engine TEXT NOT NULL, -- version of the engine
    app_version TEXT, -- version of the program's code, where it was told
    workflows TEXT NOT NULL, -- workflows that it can run, one in a line
    is_client INTEGER NOT NULL -- 1 if it runs nothing
) STRICT;

CREATE TABLE lanes (
    -- One row per lane of a registration: the fence. A flush whose row is gone, or has another epoch, is
    -- refused.
    worker_id INTEGER NOT NULL, -- whose lane
    lane INTEGER NOT NULL, -- number of the lane, from 0
    epoch INTEGER NOT NULL, -- the fencing token
    last_number INTEGER NOT NULL DEFAULT 0, -- of the last flush that no row of its own proves
    PRIMARY KEY (worker_id, lane)
) STRICT, WITHOUT ROWID;
