-- Deletes the requests of executions that this very transaction ends: a cancel among them makes the end a cancelled
-- one. Their rows are locked, so a request is either seen here, or sees the end. $1: executions, $2: the outcome of
-- what is cancelled on request. Most often there is no request at all: then that is all it looks at.
-- One row is answered: how many requests were deleted, and what has ended as cancelled, null if nothing.
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
SELECT (SELECT count(*) FROM asked), (SELECT array_agg(key) FROM cancelled)
