-- As delete_ready_range.sql, but only rows with the is_woken of a scope: 9. This condition costs a look-up per row.
DELETE FROM ready
WHERE route = ?1 AND queue_key = ?2 AND (priority, seq, execution) >= (?3, ?4, ?5)
    AND (priority, seq, execution) <= (?6, ?7, ?8) AND is_woken = ?9
