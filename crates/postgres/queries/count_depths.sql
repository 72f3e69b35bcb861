-- Counts, for each queue, the executions that have not begun: ready for the first time, or scheduled. $1: queues.
SELECT u.queue,
       (SELECT count(*) FROM ready AS r WHERE r.queue = u.queue AND r.seq > 0)
       + (SELECT count(*) FROM executions AS e WHERE e.queue = u.queue AND e.status = 0 AND e.queue IS NOT NULL)
FROM unnest($1::text[]) AS u (queue)
