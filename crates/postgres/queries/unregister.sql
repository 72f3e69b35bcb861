-- Ends the registration of a fenced worker that has no assignments any more. $1: the worker. Also deletes lanes of
-- registrations that ended more than a day ago, more than this statement ends.
WITH ended AS (
    DELETE FROM workers AS w
    WHERE w.worker_id = $1::bigint
      AND (SELECT true FROM assignments AS a WHERE a.worker_id = $1::bigint LIMIT 1) IS NULL
    RETURNING w.worker_id
), dated AS (
    UPDATE lanes SET ended_at = clock_timestamp() WHERE worker_id = $1::bigint AND (SELECT count(*) FROM ended) > 0
), forgotten AS (
    DELETE FROM lanes
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM lanes
        WHERE ended_at < now() - interval '1 day'
        ORDER BY ended_at
        LIMIT 1000
        FOR UPDATE SKIP LOCKED))
)
SELECT worker_id FROM ended
