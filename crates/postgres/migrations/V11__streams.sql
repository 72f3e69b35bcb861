-- The word for the executions of one workflow, version and queue is route.
ALTER TABLE ready RENAME COLUMN stream TO route;
ALTER TABLE timers RENAME COLUMN stream TO route;

CREATE TABLE stream_entries (
    "offset"       bigint NOT NULL,
    attempt_offset bigint NOT NULL,
    written_at     timestamptz NOT NULL,
    execution      uuid NOT NULL,
    stream         text COLLATE "C" NOT NULL,
    path           bytea NOT NULL,
    value          bytea NOT NULL,
    CONSTRAINT stream_entries_key PRIMARY KEY (execution, stream, "offset")
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);

COMMENT ON TABLE stream_entries IS
    'One row per value that an execution has written to a stream, and one for the end of a closed stream; append-only';
COMMENT ON COLUMN stream_entries."offset" IS 'Place in the stream, from 0';
COMMENT ON COLUMN stream_entries.attempt_offset IS 'Offset of the first value that the same attempt of the step wrote';
COMMENT ON COLUMN stream_entries.written_at IS 'Time of the writing, by the writer''s estimate of the server''s clock';
COMMENT ON COLUMN stream_entries.execution IS 'Key of the execution';
COMMENT ON COLUMN stream_entries.stream IS 'Name of the stream';
COMMENT ON COLUMN stream_entries.path IS 'Path of the step that wrote the value; empty if the code of the workflow did';
COMMENT ON COLUMN stream_entries.value IS 'The encoded value; empty for the end of the stream';

COMMENT ON COLUMN checkpoints.kind IS
    '1 step, 2 failed step, 3 abandoned, 4 timer, 5 child, 6 start of a child, 7 received message, 8 sent message, '
    '9 event, 10 event read, 11 stream write';

-- as in V8__compression.sql
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        EXECUTE 'ALTER TABLE stream_entries ALTER COLUMN value SET COMPRESSION lz4';
    END IF;
END
$$;
