-- Deletes the last failures (checkpoints of kind 2) from the records of failed executions, so that their steps are tried
-- again. A failure is one of the last if no checkpoint of another kind follows it, except abandoned calls. The statement
-- also deletes the attempts of these steps, and the calls that were abandoned after the first of the failures. $1:
-- executions.
WITH cuts AS MATERIALIZED (
    SELECT k.execution,
           (SELECT min(f.order_no) FROM checkpoints AS f
            WHERE f.execution = k.execution AND f.kind = 2
              AND f.order_no > coalesce((SELECT max(l.order_no) FROM checkpoints AS l
                                         WHERE l.execution = k.execution AND l.kind NOT IN (2, 3)), -1)) AS first
    FROM unnest($1::uuid[]) AS k (execution)
), tried AS (
    -- by ctid: whatever the statistics say, the plan does not scan all attempts
    DELETE FROM attempts
    WHERE ctid = ANY (ARRAY(
        SELECT a.place
        FROM cuts AS k
        CROSS JOIN LATERAL (SELECT f.path FROM checkpoints AS f
                            WHERE f.execution = k.execution AND f.kind = 2 AND f.order_no >= k.first
                            OFFSET 0) AS f
        CROSS JOIN LATERAL (SELECT a.ctid AS place FROM attempts AS a
                            WHERE a.execution = k.execution AND a.path = f.path
                            OFFSET 0) AS a
    ))
)
DELETE FROM checkpoints AS c
USING cuts AS k
WHERE c.execution = k.execution AND c.order_no >= k.first
