-- All deliveries to the items of a bundle, item by item. 1 and 2 the range of the items
SELECT path, run_no, order_no, kind, step_name, fingerprint, recorded_at, took_ms, outcome, execution
FROM checkpoints WHERE stripe IN (0, 1, 2, 3, 4, 5) AND execution BETWEEN ?1 AND ?2
ORDER BY execution, order_no
