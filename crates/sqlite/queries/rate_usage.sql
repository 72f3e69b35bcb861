-- Starts that count for a rate. 1 queue, 2 is_key, 3 queue_key, 4 beginning of the window
SELECT coalesce(sum(starts), 0), min(at), max(at) FROM rates
WHERE queue = ?1 AND is_key = ?2 AND queue_key = ?3 AND at > ?4
