-- Whether a batch is closed with this number of items, or has ended with it. 1 key, 2 item_count, 3 and 4 the range of its
-- bundles
SELECT 1 FROM executions
WHERE key = ?1 AND ?2 = coalesce(
    (SELECT item_count FROM batches WHERE key = ?1),
    (SELECT coalesce(sum(item_count), 0) FROM bundles WHERE key BETWEEN ?3 AND ?4)
)
