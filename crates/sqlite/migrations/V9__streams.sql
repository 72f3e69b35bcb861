-- Streams of executions. The word for the executions of one workflow, version and queue is route.
ALTER TABLE ready RENAME COLUMN stream TO route;
ALTER TABLE timers RENAME COLUMN stream TO route;

CREATE TABLE stream_entries (
    -- One row per value that an execution has written to a stream, and one for the end of a closed stream; append-only.
    execution BLOB NOT NULL, -- key of the execution
    stream TEXT NOT NULL, -- name of the stream
    "offset" INTEGER NOT NULL, -- place in the stream, from 0
    path BLOB NOT NULL, -- path of the step that wrote the value; empty if the code of the workflow did
    attempt_offset INTEGER NOT NULL, -- offset of the first value that the same attempt of the step wrote
    written_at INTEGER NOT NULL, -- time of the writing, microseconds since 1970
    value BLOB NOT NULL, -- the encoded value; empty for the end of the stream
    PRIMARY KEY (execution, stream, "offset")
) STRICT, WITHOUT ROWID;
