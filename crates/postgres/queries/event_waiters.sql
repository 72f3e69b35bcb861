-- Returns the suspended executions that wait for events. $1: the executions that set them, $2: the names of the events. The
-- OFFSET keeps the plan as it is written.
SELECT u.n - 1, w.execution
FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS u (setter, name, n)
CROSS JOIN LATERAL (SELECT w.execution FROM waits AS w
                    WHERE w.kind = 3 AND w.subject = u.setter AND w.name = u.name OFFSET 0) AS w
