-- Moves due executions of named queues to `ready`. A waiting execution goes ahead of executions that have not begun. A
-- scheduled execution becomes ready for the first time; if it was debounced, its dedup_id becomes free for the next
-- Start. Rows that another transaction has locked are skipped. Parameters as in check_due.sql.
WITH due AS MATERIALIZED (
    SELECT e.key, e.status, t.due_at
    FROM (SELECT t.execution, t.due_at FROM timers AS t
          WHERE t.due_at <= (SELECT coalesce($2::timestamptz, clock_timestamp()))
          ORDER BY t.due_at
          OFFSET 0 FOR UPDATE SKIP LOCKED) AS t
    CROSS JOIN LATERAL (SELECT e.key, e.status FROM executions AS e
                        WHERE e.key = t.execution AND e.status IN (0, 3) AND e.queue IS NOT NULL
                          AND e.workflow = ANY($1::text[])
                          AND (e.app_version = $3::text OR e.app_version IS NULL OR $3::text IS NULL)
                          AND ($4::text[] IS NULL OR e.queue = ANY($4::text[]))
                        OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
    LIMIT 5000
), moved AS (
    UPDATE executions AS e
    SET status = 1, dedup_id = CASE WHEN d.status = 0 AND starts_with(e.dedup_id, E'\x01') THEN NULL ELSE e.dedup_id END
    FROM due AS d
    WHERE e.key = d.key
    RETURNING e.key, e.workflow, e.app_version, e.queue, e.queue_key, e.priority, e.created_at, d.status AS was, d.due_at
), unarmed AS (
    DELETE FROM timers WHERE execution = ANY(ARRAY(SELECT key FROM moved)) RETURNING 1
), unwaited AS (
    DELETE FROM waits WHERE execution = ANY(ARRAY(SELECT key FROM moved)) RETURNING 1
), again AS (
    INSERT INTO ready (execution, workflow, app_version, queue, queue_key, priority, seq, is_woken)
        OVERRIDING SYSTEM VALUE
    SELECT key, workflow, app_version, queue, coalesce(queue_key, ''), coalesce(priority, 0),
           (extract(epoch FROM created_at) * 1000000)::bigint - 4611686018427387904, true
    FROM moved
    WHERE was = 3
    ON CONFLICT DO NOTHING
), queued AS (
    INSERT INTO ready (execution, workflow, app_version, queue, queue_key, priority)
    SELECT key, workflow, app_version, queue, coalesce(queue_key, ''), coalesce(priority, 0)
    FROM moved
    WHERE was = 0
    ORDER BY due_at, key
    ON CONFLICT DO NOTHING
)
SELECT key, (SELECT count(*) FROM unarmed), (SELECT count(*) FROM unwaited) FROM moved
