-- Adds running executions to the index of owners. $1: the worker, $2: keys of executions that it has started or claimed.
-- Rows that another transaction has locked are skipped: a heartbeat waits for no lock. The commit does not wait for a
-- flush of the log, because a renewal that relies on the new entries is committed after them.
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
