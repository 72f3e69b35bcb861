-- $1: owners that are gone, $2: what to add to the count of recoveries.
WITH chosen AS MATERIALIZED (
    SELECT key
    FROM executions
    WHERE owner = ANY($1::bigint[]) AND status = 2
    ORDER BY key
    LIMIT 5000
    FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE executions AS e
    SET status = 1, owner = NULL, recoveries = e.recoveries + $2::integer
    FROM chosen AS c
    WHERE e.key = c.key
    RETURNING e.key, e.workflow
), queued AS (
    INSERT INTO ready (execution, workflow) SELECT key, workflow FROM moved ORDER BY key ON CONFLICT DO NOTHING
)
SELECT count(*) FROM moved
