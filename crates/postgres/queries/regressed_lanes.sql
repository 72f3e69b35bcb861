-- Returns the lanes of a worker that have not reached an acknowledged number: the database has lost history. $1: the
-- worker, $2: lanes, $3: their acknowledged numbers, $4: the ctids of their rows, as in fence.sql.
SELECT b.lane, b.number, b.found
FROM (SELECT n.lane, n.number,
             coalesce((SELECT l.last_number FROM lanes AS l
                       WHERE l.ctid = n.place::tid AND l.worker_id = $1::bigint AND l.lane = n.lane),
                      (SELECT l.last_number FROM lanes AS l WHERE l.worker_id = $1::bigint AND l.lane = n.lane)) AS found
      FROM unnest($2::smallint[], $3::bigint[], $4::text[]) AS n (lane, number, place)
      OFFSET 0) AS b
WHERE b.found < b.number
