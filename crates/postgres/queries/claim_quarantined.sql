-- Claims executions from the quarantine. $1: the worker, $2: the executions, $3 and $4: their queues, with the versions of
-- the settings that the claim has read. The columns are those of claim.sql. An
-- execution that is claimed with no other is marked: if the worker dies now, that execution is the cause. A bundle keeps the
-- timeout of its items.
WITH chosen AS MATERIALIZED (
    SELECT e.key, u.n
    FROM unnest($2::uuid[]) WITH ORDINALITY AS u (key, n)
    CROSS JOIN LATERAL (SELECT FROM quarantine AS q WHERE q.execution = u.key OFFSET 0 FOR UPDATE SKIP LOCKED) AS q
    CROSS JOIN LATERAL (SELECT e.key
                        FROM executions AS e
                        WHERE e.key = u.key AND e.status = 1 AND NOT e.is_paused
                        OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
), taken AS (
    UPDATE executions AS e
    SET status = 2, owner = $1::bigint, is_alone = nullif((SELECT count(*) = 1 FROM chosen), false),
        run_timeout_ms = CASE WHEN get_byte(uuid_send(e.key), 8) >= 192 AND get_byte(uuid_send(e.key), 10) >= 128
                              THEN e.run_timeout_ms END
    FROM chosen AS c
    WHERE e.key = c.key
    RETURNING e.*, c.n
), asked AS (
    UPDATE requests SET worker_id = $1::bigint WHERE execution = ANY(ARRAY(SELECT key FROM chosen))
), undated AS (
    DELETE FROM deadlines WHERE execution = ANY(ARRAY(SELECT key FROM taken WHERE deadline_at IS NOT NULL))
), released AS (
    DELETE FROM quarantine WHERE execution = ANY(ARRAY(SELECT key FROM chosen)) RETURNING 1
)
SELECT key, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, input, outcome,
       owner, run_no, recoveries, created_at, ended_at, deadline_at, armed, NULL::timestamptz AS wake_at,
       strikes, app_version, queue, queue_key, priority, dedup_id, run_timeout_ms,
       true AS has_more, false,
       NOT EXISTS (SELECT FROM unnest($3::text[], $4::bigint[]) AS u (name, version)
                   WHERE u.version IS DISTINCT FROM (SELECT q.version FROM queues AS q WHERE q.name = u.name)),
       NULL::bigint AS seq,
       CASE WHEN get_byte(uuid_send(key), 8) >= 192 AND get_byte(uuid_send(key), 10) >= 128
            THEN (SELECT b.item_count FROM bundles AS b WHERE b.key = taken.key) END,
       0::bigint, 0::bigint, 0::bigint
FROM taken
ORDER BY n
