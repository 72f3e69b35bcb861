-- The first of the step failures at the end of an execution's record. 1 key
SELECT min(order_no)
FROM checkpoints
WHERE stripe IN (0, 1, 2, 3, 4, 5) AND execution = ?1 AND kind = 2
    AND order_no > (
        SELECT coalesce(max(order_no), -1) FROM checkpoints
        WHERE stripe IN (0, 1, 2, 3, 4, 5) AND execution = ?1 AND kind NOT IN (2, 3)
    )
