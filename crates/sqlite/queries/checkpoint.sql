-- 1 execution, 2 path, 3 run_no, 4 order_no, 5 kind, 6 step_name, 7 fingerprint, 8 recorded_at, 9 took_ms,
-- 10 outcome
INSERT INTO checkpoints (
    execution, path, run_no, order_no, kind, step_name, fingerprint, recorded_at, took_ms, outcome
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT DO NOTHING
