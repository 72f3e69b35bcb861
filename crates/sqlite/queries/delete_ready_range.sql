-- Deletes the ready rows of a route in a queue key from one position to another. 1 route, 2 queue_key, 3 priority, 4
-- seq, 5 execution of the first, 6 priority, 7 seq, 8 execution of the last
DELETE FROM ready
WHERE route = ?1 AND queue_key = ?2 AND (priority, seq, execution) >= (?3, ?4, ?5)
    AND (priority, seq, execution) <= (?6, ?7, ?8)
