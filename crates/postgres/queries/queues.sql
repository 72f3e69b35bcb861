-- Lists queues by name. $1: names, null for all.
SELECT name, version, changed_at, is_paused, concurrency, worker_concurrency, key_concurrency, rate_starts,
       rate_period_ms, rate_burst, key_rate_starts, key_rate_period_ms, key_rate_burst, key_weights, max_depth
FROM queues
LEFT JOIN depths ON queue = name
WHERE $1::text[] IS NULL OR name = ANY($1::text[])
ORDER BY name
