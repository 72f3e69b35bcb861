-- Records requests to running executions, whose rows are locked. Each names the worker that runs the execution. Returns
-- these workers.
INSERT INTO requests (requested_at, kind, execution, n, worker_id)
SELECT u.requested_at, u.kind, u.execution, u.n, (SELECT e.owner FROM executions AS e WHERE e.key = u.execution)
FROM unnest($1::timestamptz[], $2::smallint[], $3::uuid[], $4::uuid[]) AS u (requested_at, kind, execution, n)
ON CONFLICT DO NOTHING
RETURNING worker_id
