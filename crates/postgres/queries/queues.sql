-- Queues, by name. $1: which, null for all.
SELECT name, version, changed_at, is_paused, concurrency, worker_concurrency, key_concurrency
FROM queues
WHERE $1::text[] IS NULL OR name = ANY($1::text[])
ORDER BY name
