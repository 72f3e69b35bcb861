-- The first rows of the inbox. 1 limit
SELECT
    id, key, workflow, app_version, queue, queue_key, priority, due_at, attributes IS NOT NULL,
    EXISTS (
        SELECT 1 FROM json_each(attributes) AS a
        WHERE a.type <> 'text' OR length(CAST(a.key AS BLOB)) NOT BETWEEN 1 AND 128
            OR length(CAST(a.value AS BLOB)) NOT BETWEEN 1 AND 1024
    ),
    put_at, deadline_at
FROM inbox
ORDER BY id
LIMIT ?1
