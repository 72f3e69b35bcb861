-- Inserts a checkpoint. A batch statement repeats the row of values. The columns have the order of the table, so that SQLite
-- uses the values in place and copies none.
INSERT OR FAIL INTO checkpoints (
    stripe, execution, path, run_no, order_no, kind, step_name, fingerprint, recorded_at, took_ms, outcome
) VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
