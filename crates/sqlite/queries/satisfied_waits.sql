-- Suspended executions that wait for a finished child and have not been woken.
SELECT DISTINCT waits.execution FROM waits
CROSS JOIN executions AS child ON child.key = waits.child
CROSS JOIN executions AS parent ON parent.key = waits.execution
WHERE child.status >= 4 AND parent.status = 3
