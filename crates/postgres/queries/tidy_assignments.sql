-- Deletes assignments of which no execution runs any more, and moves executions of other assignments to a new one. The
-- registration is locked, so that a takeover either ends before, and then this statement changes nothing, or sees these
-- changes. The commit does not wait for a flush of the log: the old rows list the same executions. $1: the worker, $2: its
-- epoch, $3 and $4: lanes and numbers of the rows to delete, $5 to $7: the new row, null for none.
WITH worker AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
    FROM workers WHERE worker_id = $1::bigint AND epoch = $2::bigint FOR KEY SHARE
), merged AS (
    INSERT INTO assignments (worker_id, lane, number, executions)
    SELECT $1::bigint, $5::smallint, $6::bigint, $7::uuid[] FROM worker WHERE $5::smallint IS NOT NULL
    ON CONFLICT DO NOTHING
)
DELETE FROM assignments AS a
USING unnest($3::smallint[], $4::bigint[]) AS u (lane, number)
WHERE a.worker_id = $1::bigint AND a.lane = u.lane AND a.number = u.number AND EXISTS (SELECT FROM worker)
