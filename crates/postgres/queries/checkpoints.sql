SELECT execution, path, run_no, order_no, kind, step_name, fingerprint, outcome, recorded_at, took_ms
FROM checkpoints WHERE execution = ANY($1::uuid[]) ORDER BY execution, order_no, path
