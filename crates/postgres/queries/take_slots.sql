-- Gives slots to claimed executions. $1: the worker that runs them, $2 to $4: executions with their queues and keys.
INSERT INTO slots (worker_id, execution, queue, queue_key)
SELECT $1::bigint, u.execution, u.queue, u.queue_key
FROM (SELECT unnest($2::uuid[]) AS execution, unnest($3::text[]) AS queue, unnest($4::text[]) AS queue_key) AS u
ON CONFLICT (queue, queue_key, execution) DO UPDATE SET worker_id = excluded.worker_id
