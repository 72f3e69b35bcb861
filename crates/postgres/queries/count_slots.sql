-- Counts the running executions of queues, in total and of one worker. $1: queues, whose rows are locked, $2: the worker.
SELECT q.queue, s.used, s.here
FROM unnest($1::text[]) AS q (queue)
CROSS JOIN LATERAL (SELECT count(*) AS used, count(*) FILTER (WHERE s.worker_id = $2::bigint) AS here
                    FROM slots AS s
                    WHERE s.queue = q.queue) AS s
