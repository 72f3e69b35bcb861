-- Locks executions of which a wake condition holds, other than the timer, and returns them. Executions that another transaction has locked are
-- left to the next search. Also returns one closed batch, if there is any: most schemas have none, and need no further
-- statement. The OFFSETs keep the plan as it is written, from the small table to the large one.
SELECT e.key
FROM (SELECT DISTINCT w.execution
      FROM waits AS w
      CROSS JOIN LATERAL (SELECT 1 FROM executions AS c
                          WHERE w.kind IN (1, 3) AND c.key = w.subject AND c.status >= 4
                          UNION ALL
                          SELECT 1 FROM messages AS m
                          WHERE w.kind = 2 AND m.execution = w.subject AND m.topic = w.name
                          UNION ALL
                          SELECT 1 FROM checkpoints AS v
                          WHERE w.kind = 3 AND v.execution = w.subject AND v.kind = 9 AND v.step_name COLLATE "C" = w.name
                          LIMIT 1) AS c
      CROSS JOIN LATERAL (SELECT FROM executions AS e WHERE e.key = w.execution AND e.status = 3 OFFSET 0) AS e
      LIMIT 5000) AS s
CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                    WHERE e.key = s.execution AND e.status = 3 OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
UNION ALL
(SELECT b.key FROM batches AS b WHERE b.item_count IS NOT NULL ORDER BY b.key LIMIT 1)
