-- Deletes the last failures (checkpoints of kind 2) from the records of failed executions, so that their steps are tried
-- again. A failure is one of the last if no checkpoint of another kind follows it, except abandoned calls. The statement
-- also deletes the attempts of these steps, and the calls that were abandoned after the first of the failures. It deletes
-- the chunks of the failures too: byte 81, then the number of the value. $1: executions.
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
), chunked AS (
    DELETE FROM chunks
    WHERE ctid = ANY (ARRAY(
        SELECT c.place
        FROM cuts AS k
        CROSS JOIN LATERAL (SELECT substring(f.outcome FROM 2 FOR 8) AS value FROM checkpoints AS f
                            WHERE f.execution = k.execution AND f.order_no >= k.first
                              AND encode(substring(f.outcome FROM 1 FOR 1), 'hex') = '81'
                            OFFSET 0) AS f
        CROSS JOIN LATERAL (SELECT c.ctid AS place FROM chunks AS c
                            WHERE c.execution = k.execution
                              AND c.value = ('x' || encode(f.value, 'hex'))::bit(64)::bigint
                            OFFSET 0) AS c
    ))
)
DELETE FROM checkpoints AS c
USING cuts AS k
WHERE c.execution = k.execution AND c.order_no >= k.first
