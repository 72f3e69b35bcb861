CREATE TABLE payloads (
    -- One row per piece of a payload of more than 400 bytes. The column of the payload has a reference in place of it: 17
    -- bytes, of which the first is ff, then the id of the first piece, the length (4 bytes) and the number of pieces (4).
    id INTEGER PRIMARY KEY, -- place of the piece: those of a payload follow each other
    bytes BLOB NOT NULL -- the piece, at most 668 bytes
) STRICT;

CREATE TABLE flushes (
    -- One row: which database this is, and how much was committed to it. The file <database>-presence has a copy, which is
    -- never ahead of it unless something of the database was lost.
    nonce INTEGER PRIMARY KEY, -- random: a database that is made anew has another one
    count INTEGER NOT NULL -- flushes that were counted: the first of a process, then one in a tenth of a second
) STRICT;
INSERT INTO flushes (nonce, count) VALUES (random(), 0);

CREATE TABLE shard (
    -- One row: what the store is to its engines.
    is_only INTEGER NOT NULL PRIMARY KEY DEFAULT 1 CHECK (is_only = 1), -- always 1: there is one row
    number INTEGER NOT NULL DEFAULT 0 CHECK (number BETWEEN 0 AND 1023), -- its number, which keys name; 0 for a store alone
    store_id TEXT NOT NULL, -- identity of the store, the text of a UUID: a connection to another file shows by it
    oldest_engine INTEGER NOT NULL -- oldest version of the schema that an engine may be written for to use this one
) STRICT;
INSERT INTO shard (store_id, oldest_engine)
SELECT substr(r, 1, 8) || '-' || substr(r, 9, 4) || '-4' || substr(r, 14, 3) || '-a' || substr(r, 18, 3) || '-' || substr(r, 21), 3
FROM (SELECT lower(hex(randomblob(16))) AS r);

-- a key names its shard
ALTER TABLE executions DROP COLUMN shard;

CREATE TABLE dead_letters (
    -- One row per row of the inbox that could not become an execution.
    id INTEGER PRIMARY KEY, -- order in which they were refused
    put_at INTEGER NOT NULL, -- as in inbox
    refused_at INTEGER NOT NULL, -- when a claim refused it
    key BLOB NOT NULL, -- as in inbox
    reason TEXT NOT NULL, -- why, for people
    workflow TEXT NOT NULL, -- as in inbox
    workflow_id TEXT, -- as in inbox
    queue TEXT, -- as in inbox
    letter TEXT NOT NULL, -- the rest of the row without its input, as a JSON object
    input BLOB NOT NULL -- as in inbox
) STRICT;

-- Keys of before end in ten random bits, where a key names its shard now; a store that is migrated is shard 0. An outbox has
-- told the text of such a key as the workflow_id, which stays. A repetition of an execution keeps the key of that.
UPDATE inbox
SET key = unhex(
        substr(hex(key), 1, 29) || substr('000044448888CCCC', instr('0123456789ABCDEF', substr(hex(key), 30, 1)), 1) || '00'
    ),
    workflow_id = coalesce(
        workflow_id,
        lower(
            substr(hex(key), 1, 8) || '-' || substr(hex(key), 9, 4) || '-' || substr(hex(key), 13, 4) || '-'
            || substr(hex(key), 17, 4) || '-' || substr(hex(key), 21)
        )
    )
WHERE (instr('048C', substr(hex(key), 30, 1)) = 0 OR substr(hex(key), 31) <> '00')
    AND NOT EXISTS (SELECT 1 FROM executions WHERE executions.key = inbox.key);

-- No program of Stepfast has written such an input.
INSERT INTO dead_letters (put_at, refused_at, key, reason, workflow, workflow_id, queue, letter, input)
SELECT
    put_at, unixepoch() * 1000000, key, 'its input begins with byte ff, as no payload does', workflow, workflow_id, queue,
    json_object(
        'due_at', due_at, 'deadline_at', deadline_at, 'fingerprint', fingerprint, 'run_timeout_ms', run_timeout_ms,
        'priority', priority, 'app_version', app_version, 'queue_key', queue_key, 'dedup_id', dedup_id,
        'attributes', json(attributes)
    ),
    input
FROM inbox
WHERE substr(input, 1, 1) = x'ff'
ORDER BY id;

-- Built anew, with the checks that a foreign transaction hears of at once.
CREATE TABLE inbox_2 (
    -- One row per start that a foreign transaction has put here: the next claim makes an execution of it.
    id INTEGER PRIMARY KEY, -- order in which they become executions
    put_at INTEGER NOT NULL CHECK (put_at BETWEEN 0 AND 13569465600000000), -- when it was put here
    due_at INTEGER CHECK (due_at BETWEEN 0 AND 13569465600000000), -- when it may begin; NULL for at once
    deadline_at INTEGER CHECK (deadline_at BETWEEN 0 AND 13569465600000000), -- as in executions
    fingerprint INTEGER, -- as in executions
    run_timeout_ms INTEGER CHECK (run_timeout_ms BETWEEN 0 AND 3162240000000), -- as in executions
    priority INTEGER CHECK (priority BETWEEN -2147483648 AND 2147483647), -- as in executions
    key BLOB NOT NULL CHECK (length(key) = 16), -- as in executions
    workflow TEXT NOT NULL CHECK (length(CAST(workflow AS BLOB)) BETWEEN 1 AND 255), -- as in executions
    workflow_id TEXT CHECK (length(CAST(workflow_id AS BLOB)) BETWEEN 1 AND 1024), -- as in executions
    app_version TEXT CHECK (length(CAST(app_version AS BLOB)) BETWEEN 1 AND 1024), -- as in executions
    queue TEXT CHECK (length(CAST(queue AS BLOB)) BETWEEN 1 AND 255 AND queue <> 'default'), -- as in executions
    queue_key TEXT CHECK (length(CAST(queue_key AS BLOB)) <= 1024 AND (queue_key IS NULL OR queue IS NOT NULL)), -- as in executions
    dedup_id TEXT CHECK (length(CAST(dedup_id AS BLOB)) BETWEEN 1 AND 1024 AND (dedup_id IS NULL OR queue IS NOT NULL)), -- as in executions
    attributes TEXT CHECK (attributes IS NULL OR json_valid(attributes) AND json_type(attributes) = 'object'), -- as in the table: an object of texts; NULL for none
    -- an input that reads like a reference would lead to the payload of another execution
    input BLOB NOT NULL CONSTRAINT "the input of a row of inbox is a payload, whose first byte is not ff: insert it with an Outbox" CHECK (substr(input, 1, 1) <> x'ff') -- as in executions
) STRICT;
INSERT INTO inbox_2 (
    id, put_at, due_at, deadline_at, fingerprint, run_timeout_ms, priority, key, workflow, workflow_id, app_version, queue,
    queue_key, dedup_id, attributes, input
)
SELECT
    id, min(max(put_at, 0), 13569465600000000), min(max(due_at, 0), 13569465600000000),
    min(max(deadline_at, 0), 13569465600000000), fingerprint, min(max(run_timeout_ms, 0), 3162240000000),
    min(max(priority, -2147483648), 2147483647), key, workflow, workflow_id,
    CASE WHEN length(CAST(app_version AS BLOB)) BETWEEN 1 AND 1024 THEN app_version END, queue, queue_key, dedup_id,
    attributes, input
FROM inbox
WHERE substr(input, 1, 1) <> x'ff';
DROP TABLE inbox;
ALTER TABLE inbox_2 RENAME TO inbox;

-- what waits, by the time at which it is cancelled
CREATE INDEX executions_by_deadline ON executions (deadline_at, key)
    WHERE deadline_at IS NOT NULL AND status IN (0, 1, 3);
