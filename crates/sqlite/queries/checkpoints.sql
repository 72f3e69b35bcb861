-- All deliveries to an execution, in order. 1 execution
SELECT path, run_no, order_no, kind, step_name, fingerprint, recorded_at, took_ms, outcome
FROM checkpoints WHERE execution = ?1 ORDER BY order_no
