-- Copies a row of the inbox that cannot become an execution to the dead letters. 1 id, 2 reason, 3 the time now.
-- Returns the id of the dead letter.
INSERT INTO dead_letters (put_at, refused_at, key, reason, workflow, workflow_id, queue, letter, input)
SELECT
    put_at, ?3, key, ?2, workflow, workflow_id, queue,
    json_object(
        'due_at', due_at, 'deadline_at', deadline_at, 'fingerprint', fingerprint, 'run_timeout_ms', run_timeout_ms,
        'priority', priority, 'app_version', app_version, 'queue_key', queue_key, 'dedup_id', dedup_id,
        'attributes', json(attributes)
    ),
    input
FROM inbox
WHERE id = ?1
RETURNING id
