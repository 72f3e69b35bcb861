-- Wakes waiting executions that are due, or of which another wake condition holds. $1: executions, of which this transaction has locked those
-- that wait, $2: the time now, null for the server's. Returns one row: the number of woken executions, of deleted timers and of
-- deleted waits, the workflows of the woken executions, and a report. The report names the executions that were not woken; it
-- is null if all were. The report is not kept, because nothing depends on the outcome of a Wake.
WITH woken AS (
    UPDATE executions AS e
    SET status = 1
    FROM unnest($1::uuid[]) AS u (key)
    WHERE e.key = u.key AND e.status = 3
      -- without EXISTS, which the planner could turn into a scan of the whole table
      AND ((SELECT true FROM timers AS t
            WHERE t.execution = e.key AND t.due_at <= coalesce($2::timestamptz, clock_timestamp())) IS NOT NULL
           OR (SELECT true FROM waits AS w
               CROSS JOIN LATERAL (SELECT FROM executions AS c WHERE c.key = w.subject AND c.status >= 4 OFFSET 0) AS c
               WHERE w.execution = e.key AND w.kind = 1 LIMIT 1) IS NOT NULL
           OR (SELECT true FROM waits AS w
               CROSS JOIN LATERAL (SELECT FROM messages AS m
                                   WHERE m.execution = w.subject AND m.topic = w.name LIMIT 1) AS m
               WHERE w.execution = e.key AND w.kind = 2 LIMIT 1) IS NOT NULL
           OR (SELECT true FROM waits AS w
               CROSS JOIN LATERAL (SELECT FROM executions AS c WHERE c.key = w.subject AND c.status >= 4
                                   UNION ALL
                                   SELECT FROM checkpoints AS v
                                   WHERE v.execution = w.subject AND v.kind = 9 AND v.step_name COLLATE "C" = w.name
                                   LIMIT 1) AS s
               -- with "kind = 3", the planner could take the index of all waits for events
               WHERE w.execution = e.key AND w.kind BETWEEN 3 AND 3 LIMIT 1) IS NOT NULL)
    RETURNING e.key, e.workflow, e.app_version, e.queue, e.queue_key, e.priority, e.created_at
), unarmed AS (
    DELETE FROM timers WHERE execution = ANY(ARRAY(SELECT key FROM woken)) RETURNING 1
), unwaited AS (
    DELETE FROM waits WHERE execution = ANY(ARRAY(SELECT key FROM woken)) RETURNING 1
), queued AS (
    -- ahead of executions that have not begun, as in ready_resumed.sql
    INSERT INTO ready (execution, route, queue_key, priority, seq, is_woken) OVERRIDING SYSTEM VALUE
    SELECT key, workflow || E'\x01' || coalesce(app_version, '') || E'\x01' || coalesce(queue, 'default'),
           coalesce(queue_key, ''), coalesce(priority, 0),
           (extract(epoch FROM created_at) * 1000000)::bigint - 4611686018427387904, true
    FROM woken
    ON CONFLICT DO NOTHING
)
SELECT count(*), (SELECT count(*) FROM unarmed), (SELECT count(*) FROM unwaited),
       ARRAY(SELECT DISTINCT workflow FROM woken),
       CASE WHEN count(*) < cardinality($1::uuid[])
            THEN jsonb_build_object('not_found', (
                SELECT jsonb_agg(u.key) FROM unnest($1::uuid[]) AS u (key)
                WHERE u.key NOT IN (SELECT key FROM woken)))::text END AS report
FROM woken
