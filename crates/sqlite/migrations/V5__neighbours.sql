CREATE TABLE assignments (
    -- One row per flush or claim that set executions running, until none of them runs. The executions of a worker are found
    -- by these rows: an index of owners would change with every start and end.
    worker_id INTEGER NOT NULL, -- the worker that runs the executions
    lane INTEGER NOT NULL, -- number of the lane; 32767 for executions that were moved here from other rows
    number INTEGER NOT NULL, -- number of the flush or claim on the lane
    executions BLOB NOT NULL, -- keys, 16 bytes each; those of executions that do not run on the worker do not count
    PRIMARY KEY (worker_id, lane, number)
) STRICT, WITHOUT ROWID;
-- The workers of older programs have ended; takeovers requeue what they still own.
INSERT INTO assignments (worker_id, lane, number, executions)
SELECT owner, 32767, row_number() OVER (ORDER BY key), key FROM executions WHERE owner IS NOT NULL AND status = 2;
-- An owner whose takeover was interrupted has no registration any more.
INSERT INTO workers (worker_id, epoch, registered_at, host, pid, engine, workflows, is_client)
SELECT DISTINCT worker_id, 1, unixepoch() * 1000000, 'unknown', 0, 'unknown', '', 0 FROM assignments
WHERE worker_id NOT IN (SELECT worker_id FROM workers);
DROP INDEX executions_by_owner;

-- the starts of a queue's keys by age, so that claims find those that no longer count
CREATE INDEX rates_by_time ON rates (queue, is_key, at);

-- The tables that claims and heartbeats search contain what they select by, in the order of the search: a worker reads no row
-- of another service.
CREATE TABLE timers_2 (
    -- One row per scheduled or suspended execution that begins, or wakes, at a due time.
    execution BLOB NOT NULL PRIMARY KEY, -- key of the execution
    due_at INTEGER NOT NULL, -- earliest time at which it becomes claimable
    stream TEXT NOT NULL, -- its workflow, the version of the code that may run it (empty for any), and its queue, separated by
    -- char(1), which no name contains
    is_scheduled INTEGER NOT NULL DEFAULT 0 -- 1 if it is scheduled, 0 if it sleeps or waits
) STRICT, WITHOUT ROWID;
INSERT INTO timers_2 (execution, due_at, stream, is_scheduled)
SELECT
    timers.execution, timers.due_at,
    executions.workflow || char(1) || coalesce(executions.app_version, '') || char(1) || coalesce(executions.queue, 'default'),
    executions.status = 0
FROM timers CROSS JOIN executions ON executions.key = timers.execution;
DROP TABLE timers;
ALTER TABLE timers_2 RENAME TO timers;
CREATE INDEX timers_by_due ON timers (stream, due_at, execution);
CREATE INDEX timers_scheduled ON timers (stream, execution) WHERE is_scheduled = 1;

CREATE TABLE ready_3 (
    -- One row per execution that can be claimed: inserted when it is queued, deleted when it is claimed.
    execution BLOB NOT NULL PRIMARY KEY, -- key of the execution
    stream TEXT NOT NULL, -- its workflow, the version of the code that may run it (empty for any), and its queue, as in timers
    queue_key TEXT NOT NULL DEFAULT '', -- its key in the queue
    priority INTEGER NOT NULL DEFAULT 0, -- smaller comes first
    seq INTEGER NOT NULL, -- the microsecond since which it stands here; of what has begun before, its age, less 2^62
    is_woken INTEGER NOT NULL DEFAULT 0 -- 1 if it goes on after it has waited
) STRICT, WITHOUT ROWID;
INSERT INTO ready_3 (execution, stream, queue_key, priority, seq, is_woken)
SELECT
    execution, workflow || char(1) || coalesce(app_version, '') || char(1) || queue, queue_key, priority, seq, is_woken
FROM ready;
DROP TABLE ready;
ALTER TABLE ready_3 RENAME TO ready;
CREATE INDEX ready_by_turn ON ready (stream, queue_key, priority, seq, execution);
CREATE INDEX ready_woken ON ready (stream, queue_key, priority, seq, execution) WHERE is_woken = 1;

CREATE TABLE quarantine_2 (
    -- One row per queued execution that seems to kill its worker; instead of a row in ready.
    execution BLOB NOT NULL PRIMARY KEY, -- key of the execution
    due_at INTEGER NOT NULL, -- when it may be tried
    workflow TEXT NOT NULL, -- name of its workflow
    app_version TEXT NOT NULL DEFAULT '' -- version of the code that may run it; empty for any
) STRICT, WITHOUT ROWID;
INSERT INTO quarantine_2 (execution, due_at, workflow, app_version)
SELECT execution, due_at, workflow, coalesce(app_version, '') FROM quarantine;
DROP TABLE quarantine;
ALTER TABLE quarantine_2 RENAME TO quarantine;
CREATE INDEX quarantine_by_due ON quarantine (workflow, app_version, due_at, execution);

CREATE TABLE requests_2 (
    -- One row per request to a running execution that its owner has not answered.
    execution BLOB NOT NULL, -- key of the execution
    n BLOB NOT NULL, -- number of the request, 16 bytes, minted by who asks
    kind INTEGER NOT NULL, -- 1 cancel, 2 resume, 4 pause
    requested_at INTEGER NOT NULL, -- when it was asked for
    worker_id INTEGER, -- the worker that runs the execution
    PRIMARY KEY (execution, n)
) STRICT, WITHOUT ROWID;
INSERT INTO requests_2 (execution, n, kind, requested_at, worker_id)
SELECT
    execution, n, kind, requested_at, (SELECT owner FROM executions WHERE executions.key = requests.execution)
FROM requests;
DROP TABLE requests;
ALTER TABLE requests_2 RENAME TO requests;
CREATE INDEX requests_by_worker ON requests (worker_id);

-- The executions of a queue that are scheduled are counted by their timers.
DROP INDEX executions_delayed;

-- Each flush takes the next number of its lane.
CREATE TABLE lanes_2 (
    -- One row per lane of a registration: the fence. A flush whose row is gone, or has another epoch, is
    -- refused.
    worker_id INTEGER NOT NULL, -- whose lane
    lane INTEGER NOT NULL, -- number of the lane, from 0
    epoch INTEGER NOT NULL, -- the fencing token
    last_number INTEGER NOT NULL DEFAULT 0, -- of the last flush that is durable
    last_outcomes TEXT, -- outcomes of that flush other than applied, as JSON; null if there are none
    PRIMARY KEY (worker_id, lane)
) STRICT, WITHOUT ROWID;
INSERT INTO lanes_2 (worker_id, lane, epoch, last_number) SELECT worker_id, lane, epoch, last_number FROM lanes;
DROP TABLE lanes;
ALTER TABLE lanes_2 RENAME TO lanes;
