-- Reads a lane. $1: the worker, $2: its lane, $3: the ctid that the lane's row had last, null if unknown; see fence.sql.
WITH here AS (
    SELECT epoch, last_number, last_outcomes
    FROM lanes
    WHERE ctid = $3::text::tid AND worker_id = $1::bigint AND lane = $2::smallint
)
SELECT epoch, last_number, last_outcomes::text FROM here
UNION ALL
SELECT epoch, last_number, last_outcomes::text
FROM lanes
WHERE NOT EXISTS (SELECT FROM here) AND worker_id = $1::bigint AND lane = $2::smallint
