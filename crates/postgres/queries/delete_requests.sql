-- Deletes the requests of executions that this transaction ends. A cancel among them turns the end into a cancelled one.
-- The rows of the executions are locked: a request is either visible here, or its transaction sees the end. $1:
-- executions, $2: the outcome of executions that end as cancelled, $3 and $4: the worker and its lane. Usually `requests` is
-- empty: then nothing else is checked. Returns one row: the number of deleted requests, the number of executions that ended
-- as cancelled, and a kept report of them, null if none did.
WITH asked AS (
    DELETE FROM requests
    WHERE execution = ANY(ARRAY(
        SELECT e.key
        FROM unnest($1::uuid[]) AS u (key)
        CROSS JOIN LATERAL (SELECT r.execution FROM requests AS r WHERE r.execution = u.key LIMIT 1) AS r
        CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                            WHERE e.key = r.execution AND e.xmin = pg_current_xact_id()::xid AND e.status >= 4
                            OFFSET 0) AS e
        WHERE (SELECT EXISTS (SELECT FROM requests AS others))))
    RETURNING execution, kind
), cancelled AS (
    UPDATE executions AS e
    SET status = 6, outcome = $2::bytea
    FROM (SELECT DISTINCT execution FROM asked WHERE kind = 1) AS a
    WHERE e.key = a.execution AND e.status IN (4, 5)
    RETURNING e.key
)
SELECT (SELECT count(*) FROM asked), count(*),
       CASE WHEN count(*) > 0
            THEN keep_outcomes($3::bigint, $4::smallint, jsonb_build_object('cancelled', jsonb_agg(key))) END AS report
FROM cancelled
