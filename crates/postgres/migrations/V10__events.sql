-- V10__events.before.sql has built it for a large table
CREATE INDEX IF NOT EXISTS checkpoints_events ON checkpoints (execution, step_name COLLATE "C", order_no) WHERE kind = 9;
CREATE INDEX waits_events ON waits (subject, name) WHERE kind = 3;

COMMENT ON COLUMN checkpoints.kind IS
    '1 step, 2 failed step, 3 abandoned, 4 timer, 5 child, 6 start of a child, 7 received message, 8 sent message, '
    '9 event, 10 event read';
COMMENT ON TABLE waits IS 'One row per wake condition of a suspended execution, other than its timer';
COMMENT ON COLUMN waits.kind IS '1 the end of a child, 2 a message, 3 an event';
COMMENT ON COLUMN waits.subject IS 'Key of the child, of the receiver of the message, or of the execution that sets the event';
COMMENT ON COLUMN waits.name IS 'Topic of the message, or name of the event; empty for a child';
