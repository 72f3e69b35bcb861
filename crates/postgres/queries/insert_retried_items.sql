-- Inserts the rows of retried items, but only of executions that this transaction wrote: a duplicate Start wrote no row.
-- $1: the items.
INSERT INTO bundles (key, item_count)
SELECT u.key, 1
FROM unnest($1::uuid[]) AS u (key)
CROSS JOIN LATERAL (SELECT FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid OFFSET 0) AS e
ON CONFLICT DO NOTHING
