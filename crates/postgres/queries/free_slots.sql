-- Deletes the slots of executions that stop running. $1: the worker that ran them, $2 to $4: executions with their queues
-- and keys. This statement does not check whether the guard of the Transition held. If the execution runs on another
-- worker, the slot belongs to that worker, and remains.
DELETE FROM slots
WHERE ctid = ANY(ARRAY(
    SELECT s.ctid
    FROM (SELECT unnest($2::uuid[]) AS execution, unnest($3::text[]) AS queue, unnest($4::text[]) AS queue_key) AS u
    CROSS JOIN LATERAL (SELECT s.ctid FROM slots AS s
                        WHERE s.queue = u.queue AND s.queue_key = u.queue_key AND s.execution = u.execution
                          AND s.worker_id = $1::bigint
                        OFFSET 0) AS s))
