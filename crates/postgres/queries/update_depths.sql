-- Stores the bounds of queues' depths. $1: queues, whose depths are locked, $2: their bounds.
UPDATE depths AS d
SET bound = u.bound
FROM unnest($1::text[], $2::bigint[]) AS u (queue, bound)
CROSS JOIN LATERAL (SELECT d.ctid AS place FROM depths AS d WHERE d.queue = u.queue OFFSET 0) AS p
WHERE d.ctid = p.place
