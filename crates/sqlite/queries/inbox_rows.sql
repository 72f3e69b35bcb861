-- The first rows of the inbox. 1 limit
SELECT
    id, key, workflow, app_version, queue, queue_key, priority, due_at, attributes IS NOT NULL, put_at, deadline_at,
    workflow_id, dedup_id
FROM inbox
ORDER BY id
LIMIT ?1
