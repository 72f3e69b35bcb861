-- Events: the checkpoints of kind 9, and the waits of kind 3.

-- the events of an execution by name, in their order
CREATE INDEX checkpoints_events ON checkpoints (execution, step_name, order_no) WHERE kind = 9;

-- the suspended executions that wait for an event
CREATE INDEX waits_events ON waits (subject, name) WHERE kind = 3;
