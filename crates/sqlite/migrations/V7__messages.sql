-- Messages to executions, and the events for which suspended executions wait.
CREATE TABLE messages (
    -- One row per message that its execution has not received yet.
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, -- the order of sending; no number is used again
    execution BLOB NOT NULL, -- key of the receiver
    topic TEXT NOT NULL, -- the topic
    value BLOB NOT NULL, -- the encoded value
    sent_at INTEGER NOT NULL -- time of the sending, microseconds since 1970
) STRICT;

-- the messages of a receiver, by topic
CREATE INDEX messages_by_receiver ON messages (execution, topic, number);

CREATE TABLE message_ids (
    -- One row per message that was sent with an id: a second one is not sent.
    execution BLOB NOT NULL, -- key of the receiver
    id TEXT NOT NULL, -- the id that the sender gave
    PRIMARY KEY (execution, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE waits_2 (
    -- One row per event for which a suspended execution waits. Any of them wakes it.
    execution BLOB NOT NULL, -- key of the waiting execution
    kind INTEGER NOT NULL, -- 1 the end of a child, 2 a message
    subject BLOB NOT NULL, -- key of the child, or of the receiver of the message
    name TEXT NOT NULL, -- topic of the message; empty for a child
    PRIMARY KEY (execution, kind, subject, name)
) STRICT, WITHOUT ROWID;
INSERT INTO waits_2 (execution, kind, subject, name) SELECT execution, 1, child, '' FROM waits;
DROP TABLE waits;
ALTER TABLE waits_2 RENAME TO waits;
