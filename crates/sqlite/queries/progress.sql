-- A number that grows with each checkpoint and each attempt of an execution. Only the last part is read: the paths of later parts
-- begin with these bytes. 1 execution
SELECT coalesce((SELECT max(order_no) FROM checkpoints
                 WHERE execution = ?1
                   AND path >= coalesce((SELECT path FROM checkpoints
                                         WHERE execution = ?1 AND path >= x'fa800000' AND path < x'fb' AND kind = 12
                                         ORDER BY path DESC LIMIT 1), x'')), 0) * 65536
       + min(65535, (SELECT count(*) FROM attempts
                     WHERE execution = ?1
                       AND path >= coalesce((SELECT path FROM checkpoints
                                             WHERE execution = ?1 AND path >= x'fa800000' AND path < x'fb' AND kind = 12
                                             ORDER BY path DESC LIMIT 1), x'')))
