-- Loads events. $1: executions, $2: for each, the name of the event whose last value is loaded, or null for all events in their
-- order.
SELECT u.n - 1, c.step_name, c.outcome, c.recorded_at
FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS u (execution, name, n)
CROSS JOIN LATERAL (
    (SELECT e.step_name, e.outcome, e.recorded_at, e.order_no FROM checkpoints AS e
     WHERE e.execution = u.execution AND e.kind = 9 AND e.step_name COLLATE "C" = u.name
     ORDER BY e.order_no DESC LIMIT 1)
    UNION ALL
    SELECT e.step_name, e.outcome, e.recorded_at, e.order_no FROM checkpoints AS e
    WHERE u.name IS NULL AND e.execution = u.execution AND e.kind = 9
) AS c
ORDER BY u.n, c.order_no
