-- A number that grows with each checkpoint and each attempt of an execution. Only the last part is read. 1 execution, 2 path at
-- which the last part begins
SELECT coalesce((SELECT max(order_no) FROM checkpoints WHERE stripe IN (0, 1, 2, 3, 4, 5) AND execution = ?1 AND path >= ?2), 0) * 65536
       + min(65535, (SELECT count(*) FROM attempts WHERE execution = ?1 AND path >= ?2))
