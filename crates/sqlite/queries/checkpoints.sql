-- The deliveries to an execution from a path on, in order. 1 execution, 2 path
SELECT path, run_no, order_no, kind, step_name, fingerprint, recorded_at, took_ms, outcome
FROM checkpoints WHERE stripe IN (0, 1, 2, 3, 4, 5) AND execution = ?1 AND path >= ?2
ORDER BY order_no
