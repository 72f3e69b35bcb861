-- $1: the worker, $2: keys of what it has started. What somebody has locked is passed over: a look waits for nobody.
-- It waits for no flush either: the look that relies on it is committed after it.
WITH hurry AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), chosen AS MATERIALIZED (
    SELECT e.key
    FROM hurry
    CROSS JOIN unnest($2::uuid[]) AS u (key)
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = u.key AND e.started_by = $1::bigint AND e.status = 2
                        OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
)
UPDATE executions AS e SET owner = e.started_by, started_by = NULL FROM chosen AS c WHERE e.key = c.key
