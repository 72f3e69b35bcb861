-- Moves due executions of named queues to `ready`. A waiting execution goes ahead of executions that have not begun. A
-- scheduled execution becomes ready for the first time; if it was debounced, its dedup_id becomes free for the next
-- Start. Executions that another transaction has locked are skipped. $1: routes that have due timers, $2: the time now, null
-- for the server's.
-- A transaction that deletes or changes a timer has locked its execution, so timers need no lock. But after this statement
-- began, a timer may have been replaced: only an execution whose timer this statement deletes is moved.
WITH due AS MATERIALIZED (
    SELECT d.key, d.place, d.timer, d.status, d.due_at
    FROM unnest($1::text[]) AS s (route)
    CROSS JOIN LATERAL (
        SELECT e.key, e.place, t.timer, e.status, t.due_at
        FROM (SELECT t.execution, t.ctid AS timer, t.due_at FROM timers AS t
              WHERE t.route = s.route AND t.due_at <= (SELECT coalesce($2::timestamptz, clock_timestamp()))
              ORDER BY t.due_at
              OFFSET 0) AS t
        CROSS JOIN LATERAL (SELECT e.key, e.ctid AS place, e.status FROM executions AS e
                            WHERE e.key = t.execution AND e.status IN (0, 3)
                            OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
        LIMIT 5000
    ) AS d
    LIMIT 5000
), unarmed AS (
    -- servers differ in whether they check a row again that has moved since the statement began
    DELETE FROM timers
    WHERE ctid = ANY(ARRAY(SELECT timer FROM due)) AND due_at <= coalesce($2::timestamptz, clock_timestamp())
    RETURNING execution
), moved AS (
    UPDATE executions AS e
    SET status = 1, dedup_id = CASE WHEN d.status = 0 AND starts_with(e.dedup_id, E'\x01') THEN NULL ELSE e.dedup_id END
    FROM due AS d
    WHERE e.ctid = d.place AND d.key = ANY(ARRAY(SELECT execution FROM unarmed))
    RETURNING e.key, e.workflow, e.app_version, e.queue, e.queue_key, e.priority, e.created_at, d.status AS was, d.due_at
), unwaited AS (
    DELETE FROM waits WHERE execution = ANY(ARRAY(SELECT key FROM moved)) RETURNING 1
), again AS (
    INSERT INTO ready (execution, route, queue_key, priority, seq, is_woken) OVERRIDING SYSTEM VALUE
    SELECT key, workflow || E'\x01' || coalesce(app_version, '') || E'\x01' || queue, coalesce(queue_key, ''),
           coalesce(priority, 0),
           (extract(epoch FROM created_at) * 1000000)::bigint - 4611686018427387904, true
    FROM moved
    WHERE was = 3
    ON CONFLICT DO NOTHING
), queued AS (
    INSERT INTO ready (execution, route, queue_key, priority)
    SELECT key, workflow || E'\x01' || coalesce(app_version, '') || E'\x01' || queue, coalesce(queue_key, ''),
           coalesce(priority, 0)
    FROM moved
    WHERE was = 0
    ORDER BY due_at, key
    ON CONFLICT DO NOTHING
)
SELECT key, (SELECT count(*) FROM unarmed), (SELECT count(*) FROM unwaited) FROM moved
