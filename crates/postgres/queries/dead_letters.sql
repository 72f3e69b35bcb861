-- Lists dead letters, the latest first. $1: the maximum number of rows. A put_at outside the bounds is shown as the
-- bound.
SELECT id, least(greatest(put_at, '1970-01-01 00:00:00+00'), '2400-01-01 00:00:00+00'), refused_at, key, reason, workflow,
       workflow_id, queue
FROM dead_letters
ORDER BY id DESC
LIMIT $1::bigint
