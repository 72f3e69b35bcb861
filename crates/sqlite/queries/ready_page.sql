-- The first ready rows of a workflow in a queue key, after a position. 1 workflow, 2 queue, 3 queue_key, 4 priority,
-- 5 seq, 6 execution, 7 limit, 8 version of the code, NULL for any, 9 is_woken, NULL for both
SELECT priority, seq, execution FROM ready
WHERE workflow = ?1 AND queue = ?2 AND queue_key = ?3 AND (priority, seq, execution) > (?4, ?5, ?6)
    AND (app_version = ?8 OR app_version IS NULL OR ?8 IS NULL)
    AND (?9 IS NULL OR is_woken = ?9)
ORDER BY priority, seq, execution LIMIT ?7
