-- 1 name, 2 version, 3 changed_at, 4 is_paused, 5 concurrency, 6 worker_concurrency, 7 key_concurrency
INSERT INTO queues (name, version, changed_at, is_paused, concurrency, worker_concurrency, key_concurrency)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (name) DO UPDATE SET
    version = excluded.version, changed_at = excluded.changed_at, is_paused = excluded.is_paused,
    concurrency = excluded.concurrency, worker_concurrency = excluded.worker_concurrency,
    key_concurrency = excluded.key_concurrency
WHERE version = ?2 - 1
