-- A row of the inbox that the database refuses as an execution becomes a dead letter. $1: its id, $2: why.
WITH picked AS (
    DELETE FROM inbox WHERE id = $1::bigint RETURNING *
)
INSERT INTO dead_letters (put_at, key, reason, workflow, workflow_id, queue, letter, input)
SELECT put_at, key, $2::text, workflow, workflow_id, queue, to_jsonb(picked) - 'input', input
FROM picked
RETURNING id, workflow
