-- $1: the worker, $2: its lane, $3: the epoch, $4: the number that is taken, $5: where the lane's row was last, null if
-- nobody knows, $6: whether numbers may be left out. Fails the transaction if the row does not agree.
-- Every flush leaves a version of the row behind, and while somebody holds a snapshot all of them stay: a search by
-- key would walk through them. So the row is looked for where it was left, and by its key only if it is not there.
WITH here AS (
    UPDATE lanes SET last_number = $4::bigint
    WHERE ctid = $5::text::tid AND worker_id = $1::bigint AND lane = $2::smallint AND epoch = $3::bigint
      AND (last_number = $4::bigint - 1 OR ($6::boolean AND last_number < $4::bigint))
    RETURNING ctid::text AS place
), elsewhere AS (
    UPDATE lanes SET last_number = $4::bigint
    WHERE NOT EXISTS (SELECT FROM here) AND worker_id = $1::bigint AND lane = $2::smallint AND epoch = $3::bigint
      AND (last_number = $4::bigint - 1 OR ($6::boolean AND last_number < $4::bigint))
    RETURNING ctid::text AS place
), taken AS (
    SELECT place FROM here UNION ALL SELECT place FROM elsewhere
)
SELECT (SELECT place FROM taken), 1 / (SELECT count(*) FROM taken)
