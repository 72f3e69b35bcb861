-- The woken executions of ready_page.sql. Parameters as there.
SELECT priority, seq, execution FROM ready INDEXED BY ready_woken
WHERE workflow = ?1 AND queue = ?2 AND queue_key = ?3 AND (priority, seq, execution) > (?4, ?5, ?6) AND is_woken = 1
    AND (?9 IS NULL OR is_woken = ?9)
    AND (app_version = ?8 OR app_version IS NULL OR ?8 IS NULL)
ORDER BY priority, seq, execution LIMIT ?7
