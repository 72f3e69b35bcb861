-- Closes an open batch that has this number of items. 1 key, 2 item_count, 3 and 4 the range of its bundles
UPDATE batches SET item_count = ?2
WHERE key = ?1
  AND item_count IS NULL
  AND ?2 = (SELECT coalesce(sum(item_count), 0) FROM bundles WHERE key BETWEEN ?3 AND ?4)
