-- Applies the most common Transition: to an end. As in transition.sql, rows are found by key; arrays as in
-- start_running.sql. $1: the worker. The column started_by keeps its value, because no index contains it and no query
-- reads it once the execution has ended. Returns one row: the keys of the executions that ended, null if all did, and
-- their number.
WITH ended AS (
    UPDATE executions AS e
    SET status = u.status, owner = NULL, outcome = u.outcome, ended_at = u.ended_at, armed = NULL,
        dedup_id = NULL
    FROM (SELECT unnest($2::uuid[]) AS key, unnest($3::smallint[]) AS status, unnest($4::bytea[]) AS outcome,
                 unnest($5::timestamptz[]) AS ended_at) AS u
    WHERE e.key = u.key AND e.status = 2 AND coalesce(e.owner, e.started_by) = $1::bigint
    RETURNING e.key
)
SELECT CASE WHEN count(*) < cardinality($2::uuid[]) THEN coalesce(array_agg(key), '{}') END, count(*) FROM ended
