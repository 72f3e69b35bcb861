-- The first ready rows of a route in a queue key, after a position. 1 route, 2 queue_key, 3 priority, 4 seq, 5 execution, 6
-- limit, 7 is_woken, NULL for both
SELECT priority, seq, execution FROM ready
WHERE route = ?1 AND queue_key = ?2 AND (priority, seq, execution) > (?3, ?4, ?5)
    AND (?7 IS NULL OR is_woken = ?7)
ORDER BY priority, seq, execution LIMIT ?6
