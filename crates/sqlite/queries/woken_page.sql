-- The woken executions of ready_page.sql. Parameters as there.
SELECT priority, seq, execution FROM ready INDEXED BY ready_woken
WHERE route = ?1 AND queue_key = ?2 AND (priority, seq, execution) > (?3, ?4, ?5)
    AND is_woken = 1 AND (?7 IS NULL OR is_woken = ?7)
ORDER BY priority, seq, execution LIMIT ?6
