-- All queues, by name.
SELECT name, version, changed_at, is_paused, concurrency, worker_concurrency, key_concurrency
FROM queues ORDER BY name
