-- Loads the failed attempts of executions from their last continuation on. The paths of later parts begin with these bytes.
SELECT a.execution, a.path, a.attempt, a.failure, a.failed_at
FROM unnest($1::uuid[]) AS u (key)
CROSS JOIN LATERAL (
    SELECT * FROM attempts AS o
    WHERE o.execution = u.key AND o.path >= coalesce((
        SELECT p.path FROM checkpoints AS p
        WHERE p.execution = u.key AND p.path >= '\xfa800000'::bytea AND p.path < '\xfb'::bytea AND p.kind = 12
        ORDER BY p.path DESC LIMIT 1), ''::bytea)
) AS a
ORDER BY a.execution, a.path, a.attempt
