-- Inserts the rows of batches that start, but only of executions that this transaction wrote: a duplicate Start wrote no row.
-- $1: the batches, $2: their numbers of items, null for open ones.
INSERT INTO batches (key, item_count)
SELECT u.key, u.item_count
FROM unnest($1::uuid[], $2::bigint[]) AS u (key, item_count)
CROSS JOIN LATERAL (SELECT FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid OFFSET 0) AS e
ON CONFLICT DO NOTHING
