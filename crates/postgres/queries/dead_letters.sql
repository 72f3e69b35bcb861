-- Lists dead letters, the latest first. $1: the maximum number of rows. A put_at before 1970 is shown as the beginning of
-- 1970, and a put_at after 2399 as the beginning of 2400.
SELECT id, least(greatest(put_at, '1970-01-01 00:00:00+00'), '2400-01-01 00:00:00+00'), refused_at, key, reason, workflow,
       workflow_id, queue
FROM dead_letters
ORDER BY id DESC
LIMIT $1::bigint
