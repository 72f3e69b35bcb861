-- Ready rows whose execution cannot be claimed, as nobody should leave them.
DELETE FROM ready AS d
USING (SELECT r.execution
       FROM ready AS r
       LEFT JOIN executions AS e ON e.key = r.execution
       WHERE r.workflow = ANY($1::text[]) AND (e.key IS NULL OR e.status <> 1 OR e.is_paused)
       ORDER BY r.execution
       LIMIT 1000
       FOR UPDATE OF r SKIP LOCKED) AS s
WHERE d.execution = s.execution
