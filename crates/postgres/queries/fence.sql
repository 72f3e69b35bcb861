-- Takes the next number of a lane, or fails the transaction. $1: the worker, $2: its lane, $3: the epoch, $4: the number
-- to take, $5: the ctid that the lane's row had last, null if unknown, $6: whether numbers may be skipped, $7: whether
-- the commit has to wait until the server has flushed its log. $8 to $10: another lane of the worker, a number that this
-- lane must have reached, and the ctid of its row; null to check no other lane. $11: the executions that the flush or claim
-- sets running, null for none. They are recorded as an assignment.
-- The statement divides by zero if the row does not match, or if the other lane has not reached its number. With $7, the
-- statement also fails if the session has lost its settings, so that its commits would not wait. In that case the value
-- of synchronous_commit cannot be cast to a number.
-- Every flush leaves an old version of the row behind. While any transaction holds a snapshot, all old versions stay, and
-- a search by key would step over them. So the row is looked up by its last ctid, and by its key only if it has moved.
WITH here AS (
    UPDATE lanes SET last_number = $4::bigint, last_outcomes = NULL
    WHERE ctid = $5::text::tid AND worker_id = $1::bigint AND lane = $2::smallint AND epoch = $3::bigint
      AND (last_number = $4::bigint - 1 OR ($6::boolean AND last_number < $4::bigint))
    RETURNING ctid::text AS place
), elsewhere AS (
    UPDATE lanes SET last_number = $4::bigint, last_outcomes = NULL
    WHERE NOT EXISTS (SELECT FROM here) AND worker_id = $1::bigint AND lane = $2::smallint AND epoch = $3::bigint
      AND (last_number = $4::bigint - 1 OR ($6::boolean AND last_number < $4::bigint))
    RETURNING ctid::text AS place
), taken AS (
    SELECT place FROM here UNION ALL SELECT place FROM elsewhere
), assigned AS (
    INSERT INTO assignments (worker_id, lane, number, executions)
    SELECT $1::bigint, $2::smallint, $4::bigint, $11::uuid[]
    WHERE $11::uuid[] IS NOT NULL AND EXISTS (SELECT FROM taken)
)
SELECT (SELECT place FROM taken), 1 / (SELECT count(*) FROM taken),
       CASE WHEN $7::boolean AND current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
            THEN current_setting('synchronous_commit')::integer END,
       CASE WHEN $8::smallint IS NOT NULL
            THEN 1 / ($9::bigint <= coalesce(
                (SELECT l.last_number FROM lanes AS l
                 WHERE l.ctid = $10::text::tid AND l.worker_id = $1::bigint AND l.lane = $8::smallint),
                (SELECT l.last_number FROM lanes AS l WHERE l.worker_id = $1::bigint AND l.lane = $8::smallint),
                0))::integer END
