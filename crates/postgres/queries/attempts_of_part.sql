-- Loads the failed attempts of executions from their last continuation on. The paths of later parts begin with these bytes. The
-- OFFSETs keep the plan: index lookups for each execution.
SELECT c.execution, c.path, c.attempt, c.failure, c.failed_at
FROM unnest($1::uuid[]) AS u (key)
CROSS JOIN LATERAL (
    SELECT coalesce((
        SELECT p.path FROM checkpoints AS p
        WHERE p.execution = u.key AND p.path >= '\xfa800000'::bytea AND p.path < '\xfb'::bytea AND p.kind = 12
        ORDER BY p.path DESC LIMIT 1), ''::bytea) AS path
    OFFSET 0
) AS b
CROSS JOIN LATERAL (
    SELECT * FROM attempts AS o WHERE o.execution = u.key AND o.path >= b.path OFFSET 0
) AS c
ORDER BY c.execution, c.path, c.attempt
