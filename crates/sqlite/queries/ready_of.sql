-- The oldest ready rows of a workflow after a position. 1 workflow, 2 seq, 3 execution, 4 limit
SELECT seq, execution FROM ready
WHERE workflow = ?1 AND (seq, execution) > (?2, ?3)
ORDER BY seq, execution LIMIT ?4
