-- The number of executions of a queue that have not begun: ready for the first time, or scheduled. 1 queue
WITH RECURSIVE workflows (name) AS (
    SELECT min(workflow) FROM ready
    UNION ALL
    SELECT (SELECT min(r.workflow) FROM ready AS r WHERE r.workflow > w.name) FROM workflows AS w WHERE w.name IS NOT NULL
)
SELECT
    (SELECT count(*) FROM workflows AS w CROSS JOIN ready AS r
     WHERE r.workflow = w.name AND r.queue = ?1 AND r.seq > 0)
    + (SELECT count(*) FROM executions WHERE queue = ?1 AND status = 0)
