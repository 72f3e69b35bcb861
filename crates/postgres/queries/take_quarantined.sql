-- Claims what is to be tried of the quarantine. Its parameters and columns are those of take.sql. One that is claimed
-- with no other is marked: if its worker dies now, the culprit is known.
WITH chosen AS MATERIALIZED (
    SELECT e.key, row_number() OVER (ORDER BY q.due_at, e.key) AS n
    FROM (SELECT q.execution, q.due_at
          FROM quarantine AS q
          WHERE q.due_at <= (SELECT coalesce($5::timestamptz, clock_timestamp())) AND q.workflow = ANY($2::text[])
            AND (q.app_version = $6::text OR q.app_version IS NULL OR $6::text IS NULL)
          ORDER BY q.due_at
          OFFSET 0 FOR UPDATE SKIP LOCKED) AS q
    CROSS JOIN LATERAL (SELECT e.key
                        FROM executions AS e
                        WHERE e.key = q.execution AND e.status = 1 AND NOT e.is_paused
                        OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
    LIMIT $3::bigint
), taken AS (
    UPDATE executions AS e
    SET status = 2, owner = $1::bigint, started_by = NULL, is_alone = (SELECT count(*) = 1 FROM chosen)
    FROM chosen AS c
    WHERE e.key = c.key AND $4::bigint > 0
    RETURNING e.*, c.n
), released AS (
    DELETE FROM quarantine WHERE execution = ANY(ARRAY(SELECT key FROM chosen)) RETURNING 1
)
SELECT key, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, input, outcome,
       owner, run_no, recoveries, created_at, ended_at, deadline_at, armed, NULL::timestamptz AS wake_at,
       strikes, app_version,
       true AS has_more, 0::bigint, 0::bigint, 0::bigint
FROM taken
ORDER BY n
