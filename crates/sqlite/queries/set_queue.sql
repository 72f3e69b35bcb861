-- Creates or changes a queue, if its version is the expected one. 1 name, 2 version, 3 changed_at, 4 is_paused,
-- 5 concurrency, 6 worker_concurrency, 7 key_concurrency, 8 to 10 rate, 11 to 13 key_rate, 14 max_depth, 15 key_weights
INSERT INTO queues (
    name, version, changed_at, is_paused, concurrency, worker_concurrency, key_concurrency, rate_starts,
    rate_period_ms, rate_burst, key_rate_starts, key_rate_period_ms, key_rate_burst, max_depth,
    key_weights
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
ON CONFLICT (name) DO UPDATE SET
    version = excluded.version, changed_at = excluded.changed_at, is_paused = excluded.is_paused,
    concurrency = excluded.concurrency, worker_concurrency = excluded.worker_concurrency,
    key_concurrency = excluded.key_concurrency, rate_starts = excluded.rate_starts,
    rate_period_ms = excluded.rate_period_ms, rate_burst = excluded.rate_burst,
    key_rate_starts = excluded.key_rate_starts, key_rate_period_ms = excluded.key_rate_period_ms,
    key_rate_burst = excluded.key_rate_burst, max_depth = excluded.max_depth, depth_bound = excluded.depth_bound,
    key_weights = excluded.key_weights
WHERE version = ?2 - 1
