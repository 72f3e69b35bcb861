CREATE TABLE messages (
    number    bigint GENERATED ALWAYS AS IDENTITY,
    sent_at   timestamptz NOT NULL,
    execution uuid NOT NULL,
    topic     text COLLATE "C" NOT NULL,
    value     bytea NOT NULL,
    CONSTRAINT messages_key PRIMARY KEY (execution, topic, number)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);

COMMENT ON TABLE messages IS 'One row per message that its execution has not received yet';
COMMENT ON COLUMN messages.number IS 'The order of sending';
COMMENT ON COLUMN messages.sent_at IS 'Time of the sending, by the sender''s estimate of the server''s clock';
COMMENT ON COLUMN messages.execution IS 'Key of the receiver';
COMMENT ON COLUMN messages.topic IS 'The topic';
COMMENT ON COLUMN messages.value IS 'The encoded value';

CREATE TABLE message_ids (
    execution uuid NOT NULL,
    id        text COLLATE "C" NOT NULL,
    CONSTRAINT message_ids_key PRIMARY KEY (execution, id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);

COMMENT ON TABLE message_ids IS 'One row per message that was sent with an id: a second one is not sent; append-only';
COMMENT ON COLUMN message_ids.execution IS 'Key of the receiver';
COMMENT ON COLUMN message_ids.id IS 'The id that the sender gave';

-- no query uses it
DROP INDEX waits_child;
ALTER TABLE waits RENAME COLUMN child TO subject;
ALTER TABLE waits ADD COLUMN kind smallint NOT NULL DEFAULT 1, ADD COLUMN name text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE waits ALTER COLUMN kind DROP DEFAULT, ALTER COLUMN name DROP DEFAULT;
ALTER TABLE waits DROP CONSTRAINT waits_key, ADD CONSTRAINT waits_key PRIMARY KEY (execution, kind, subject, name);
COMMENT ON TABLE waits IS 'One row per event for which a suspended execution waits';
COMMENT ON COLUMN waits.kind IS '1 the end of a child, 2 a message';
COMMENT ON COLUMN waits.subject IS 'Key of the child, or of the receiver of the message';
COMMENT ON COLUMN waits.name IS 'Topic of the message; empty for a child';

-- as in V8__compression.sql
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        EXECUTE 'ALTER TABLE messages ALTER COLUMN value SET COMPRESSION lz4';
    END IF;
END
$$;
