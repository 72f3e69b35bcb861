-- Returns the assignments of a worker, with the executions of each that the worker runs. $1: the worker.
SELECT a.lane, a.number,
       ARRAY(SELECT e.key
             FROM unnest(a.executions) AS u (key)
             CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                                 WHERE e.key = u.key AND e.owner = a.worker_id AND e.status = 2
                                 OFFSET 0) AS e)
FROM assignments AS a
WHERE a.worker_id = $1::bigint
