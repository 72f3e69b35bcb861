-- Loads the checkpoints of the items of bundles, as checkpoints.sql does. $1 and $2 as in promoted_items.sql.
SELECT p.execution, p.path, p.run_no, p.order_no, p.kind, p.step_name, p.fingerprint, p.outcome, p.recorded_at, p.took_ms
FROM unnest($1::uuid[], $2::uuid[]) AS u (first_item, last_item)
CROSS JOIN LATERAL (SELECT p.* FROM checkpoints AS p
                    WHERE p.execution >= u.first_item AND p.execution <= u.last_item OFFSET 0) AS p
ORDER BY p.execution, p.order_no, p.path
