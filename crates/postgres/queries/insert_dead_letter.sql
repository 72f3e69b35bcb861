-- Moves a row of the inbox to `dead_letters`, because the database rejects it as an execution. $1: its id, $2: the
-- reason.
WITH picked AS (
    DELETE FROM inbox WHERE id = $1::bigint RETURNING *
)
INSERT INTO dead_letters (put_at, key, reason, workflow, workflow_id, queue, letter, input)
SELECT put_at, key, $2::text, workflow, workflow_id, queue, to_jsonb(picked) - 'input', input
FROM picked
RETURNING id, workflow
