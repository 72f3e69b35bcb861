-- $1: queues. Those that limit how many wait in them, locked in the order of their names.
SELECT queue, max_depth, bound FROM depths WHERE queue = ANY($1::text[]) ORDER BY queue FOR NO KEY UPDATE
