-- Locks and reads the depths of queues that have a limit, in the order of their names. $1: queues.
SELECT queue, max_depth, bound FROM depths WHERE queue = ANY($1::text[]) ORDER BY queue FOR NO KEY UPDATE
