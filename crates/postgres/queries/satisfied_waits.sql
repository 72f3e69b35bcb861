-- Returns executions that wait for a child that has ended. The OFFSETs keep the plan as it is written, from the small
-- table to the large one.
SELECT DISTINCT w.execution
FROM waits AS w
CROSS JOIN LATERAL (SELECT FROM executions AS c WHERE c.key = w.child AND c.status >= 4 OFFSET 0) AS c
CROSS JOIN LATERAL (SELECT FROM executions AS e WHERE e.key = w.execution AND e.status = 3 OFFSET 0) AS e
LIMIT 5000
