-- Records which executions a flush or claim has set running. $1: the worker, $2 and $3: the lane and number of the flush or
-- claim, $4: the executions. A claim may send this statement twice.
INSERT INTO assignments (worker_id, lane, number, executions)
VALUES ($1::bigint, $2::smallint, $3::bigint, $4::uuid[])
ON CONFLICT (worker_id, lane, number) DO UPDATE SET executions = assignments.executions || excluded.executions
