-- The oldest ready rows of a workflow after a position. 1 workflow, 2 seq, 3 execution, 4 limit,
-- 5 version of the code, NULL for any
SELECT seq, execution FROM ready
WHERE workflow = ?1 AND (seq, execution) > (?2, ?3)
    AND (app_version = ?5 OR app_version IS NULL OR ?5 IS NULL)
ORDER BY seq, execution LIMIT ?4
