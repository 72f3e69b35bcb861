-- Dead letters, the latest first. 1 limit
SELECT id, put_at, refused_at, key, reason, workflow, workflow_id, queue
FROM dead_letters
ORDER BY id DESC
LIMIT ?1
