-- Inserts a checkpoint. A batch statement repeats the row of values.
INSERT OR FAIL INTO checkpoints (
    execution, path, run_no, order_no, kind, recorded_at, took_ms, fingerprint, outcome, step_name
) VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
