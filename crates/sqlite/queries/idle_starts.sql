-- Starts of the keys of a queue that no longer count for a rate, the oldest first. 1 queue, 2 the time up to which starts of
-- a key without even spacing do not count
-- A key may never start again, so a claim deletes starts of other keys, more than it inserts. With even spacing an entry is
-- at most a whole burst ahead of the present time, and counts for at most a period.
SELECT queue_key, at FROM rates
WHERE queue = ?1 AND is_key = 1 AND at <= (
    SELECT CASE
        WHEN key_rate_burst IS NULL THEN ?2
        WHEN key_rate_period_ms * (2.0 + key_rate_burst * 1.0 / max(key_rate_starts, 1)) < 3e12
        THEN ?2 - CAST(key_rate_period_ms * (2.0 + key_rate_burst * 1.0 / max(key_rate_starts, 1)) AS INTEGER) * 1000
    END
    FROM queues WHERE name = ?1
)
ORDER BY at LIMIT 4
