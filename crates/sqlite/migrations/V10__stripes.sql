-- Stripes: the first checkpoints of many executions lie together, and the later ones in places of their own. A page that the
-- first checkpoints have filled is then not written to the log again for each later checkpoint.
CREATE TABLE checkpoints_2 (
    -- One row per delivery to an execution: what a replay finds recorded. Append-only.
    stripe INTEGER NOT NULL, -- group of the path, 0 to 5, so that the first calls of many executions fill pages together
    execution BLOB NOT NULL, -- key of the execution
    path BLOB NOT NULL, -- structural position of the call, order-preserving bytes
    run_no INTEGER NOT NULL, -- the run that recorded it
    order_no INTEGER NOT NULL, -- position among all deliveries to the execution
    kind INTEGER NOT NULL, -- 1 step, 2 failed, 3 abandoned, 4 timer, 5 child, 6 started child, 7 message, 8 sent message, 9 event,
    -- 10 read event, 11 stream write, 12 continuation
    step_name TEXT NOT NULL, -- name of the step, the child's workflow, the topic, the event, the stream, or sleep
    fingerprint INTEGER, -- hash of the arguments, where they were given
    recorded_at INTEGER NOT NULL, -- when it was delivered
    took_ms INTEGER NOT NULL, -- from the call to its delivery
    outcome BLOB, -- the value, a failure, a child's key, or NULL
    PRIMARY KEY (stripe, execution, path)
) STRICT, WITHOUT ROWID;
INSERT INTO checkpoints_2 (
    stripe, execution, path, run_no, order_no, kind, step_name, fingerprint, recorded_at, took_ms, outcome
)
SELECT stripe, execution, path, run_no, order_no, kind, step_name, fingerprint, recorded_at, took_ms, outcome
FROM (
    SELECT *, CASE
        WHEN length(path) = 4 AND substr(path, 1, 1) = x'fa' THEN 5 -- a part of the execution
        WHEN substr(path, -1) <= x'04' THEN 0
        WHEN substr(path, -1) <= x'08' THEN 1
        WHEN substr(path, -1) <= x'10' THEN 2
        WHEN substr(path, -1) <= x'20' THEN 3
        WHEN substr(path, -1) <= x'40' THEN 4
        ELSE 5
    END AS stripe
    FROM checkpoints
)
ORDER BY stripe, execution, path;
DROP TABLE checkpoints;
ALTER TABLE checkpoints_2 RENAME TO checkpoints;

-- the events of an execution by name, in their order
CREATE INDEX checkpoints_events ON checkpoints (execution, step_name, order_no) WHERE kind = 9;
