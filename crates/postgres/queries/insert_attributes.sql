-- Stores the attributes of started executions, but only of rows that this transaction wrote: a duplicate Start wrote no
-- row.
INSERT INTO attributes (execution, name, value)
SELECT u.key, u.name, u.value
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS u (key, name, value)
CROSS JOIN LATERAL (SELECT FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid OFFSET 0) AS e
ON CONFLICT DO NOTHING
