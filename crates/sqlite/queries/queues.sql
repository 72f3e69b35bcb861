-- All queues, by name.
SELECT
    name, version, changed_at, is_paused, concurrency, worker_concurrency, key_concurrency, rate_starts,
    rate_period_ms, rate_burst, key_rate_starts, key_rate_period_ms, key_rate_burst, max_depth,
    key_weights
FROM queues
ORDER BY name
