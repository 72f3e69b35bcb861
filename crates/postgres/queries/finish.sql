-- Applies the most common Transition: to an end. Arrays as in start_running.sql. $1: the worker, $6: the lane. Returns one
-- row: the number of executions that ended, and a kept report of those that did not, null if all did.
WITH ended AS (
    UPDATE executions AS e
    SET status = u.status, owner = NULL, outcome = u.outcome, ended_at = u.ended_at, armed = NULL,
        dedup_id = NULL
    FROM (SELECT unnest($2::uuid[]) AS key, unnest($3::smallint[]) AS status, unnest($4::bytea[]) AS outcome,
                 unnest($5::timestamptz[]) AS ended_at) AS u
    WHERE e.key = u.key AND e.status = 2 AND e.owner = $1::bigint
    RETURNING e.key
)
SELECT count(*),
       CASE WHEN count(*) < cardinality($2::uuid[])
            THEN keep_outcomes($1::bigint, $6::smallint, jsonb_build_object('not_found', (
                SELECT jsonb_agg(u.key) FROM unnest($2::uuid[]) AS u (key)
                WHERE u.key NOT IN (SELECT key FROM ended)))) END AS report
FROM ended
