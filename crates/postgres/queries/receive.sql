-- What foreign transactions have put into the inbox becomes executions, in the order in which it came. What is there already, by
-- its key, its workflow_id or its dedup_id, is there; a full queue takes it. $1: the time now, null for the server's. What
-- another worker receives at the moment is passed over. No value of a row stands in the way of the others: times are
-- brought within a hundred years of now, and timeouts to at most that.
WITH picked_as_they_are AS MATERIALIZED (
    DELETE FROM inbox
    WHERE id = ANY(ARRAY(SELECT id FROM inbox ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED))
    RETURNING *
), clock AS MATERIALIZED (
    SELECT coalesce($1::timestamptz, clock_timestamp()) AS now,
           coalesce($1::timestamptz, clock_timestamp()) - interval '36600 days' AS first,
           coalesce($1::timestamptz, clock_timestamp()) + interval '36600 days' AS last
), picked AS MATERIALIZED (
    SELECT p.id, p.fingerprint, p.shard, p.key, p.workflow, p.workflow_id, p.app_version, p.queue, p.queue_key,
           p.priority, p.dedup_id, p.attributes, p.input,
           least(greatest(p.put_at, c.first), c.last) AS put_at,
           CASE WHEN p.deadline_at IS NOT NULL THEN least(greatest(p.deadline_at, c.first), c.last) END AS deadline_at,
           CASE WHEN p.due_at IS NOT NULL THEN least(greatest(p.due_at, c.first), c.last) END AS due_at,
           CASE WHEN p.run_timeout_ms IS NOT NULL
                THEN least(greatest(p.run_timeout_ms, 0), 3162240000000) END AS run_timeout_ms
    FROM picked_as_they_are AS p CROSS JOIN clock AS c
), started AS (
    INSERT INTO executions (created_at, deadline_at, fingerprint, shard, status, key, workflow, workflow_id, input,
                            app_version, queue, queue_key, priority, dedup_id, run_timeout_ms)
    SELECT put_at, deadline_at, fingerprint, shard,
           CASE WHEN due_at > (SELECT now FROM clock) THEN 0 ELSE 1 END,
           key, workflow, workflow_id, input, app_version, queue, queue_key, priority, dedup_id, run_timeout_ms
    FROM picked
    ORDER BY queue, dedup_id, workflow_id, key
    ON CONFLICT DO NOTHING
    RETURNING key, status, created_at, workflow, app_version, queue, queue_key, priority
), found_by AS (
    INSERT INTO attributes (execution, name, value)
    SELECT p.key, a.name, a.value #>> '{}'
    FROM picked AS p
    CROSS JOIN LATERAL jsonb_each(p.attributes) AS a (name, value)
    -- nothing stands in the way of what comes after it
    WHERE p.key IN (SELECT key FROM started) AND jsonb_typeof(a.value) = 'string'
      AND octet_length(a.name) BETWEEN 1 AND 128 AND octet_length(a.value #>> '{}') BETWEEN 1 AND 1024
    ON CONFLICT DO NOTHING
    RETURNING 1
), delayed AS (
    INSERT INTO timers (due_at, execution)
    SELECT due_at, key FROM picked WHERE due_at IS NOT NULL AND key IN (SELECT key FROM started WHERE status = 0)
    ORDER BY key, due_at
    ON CONFLICT DO NOTHING
    RETURNING 1
), queued AS (
    INSERT INTO ready (execution, workflow, app_version, queue, queue_key, priority)
    SELECT key, workflow, app_version, coalesce(queue, 'default'), coalesce(queue_key, ''), coalesce(priority, 0)
    FROM started
    WHERE status = 1
    ORDER BY created_at, key
    RETURNING 1
), deeper AS (
    -- whoever puts something there next counts
    UPDATE depths SET bound = 9223372036854775807 WHERE queue = ANY(ARRAY(SELECT queue FROM picked))
)
SELECT (SELECT count(*) FROM picked), (SELECT count(*) FROM started), (SELECT count(*) FROM queued),
       (SELECT count(*) FROM delayed), (SELECT count(*) FROM found_by)
