-- $1: executions, locked before; $2: the time now, null for the server's.
WITH woken AS (
    UPDATE executions AS e
    SET status = 1
    FROM unnest($1::uuid[]) WITH ORDINALITY AS u (key, n)
    WHERE e.key = u.key AND e.status = 3
      -- not EXISTS: that could be planned as a walk through the whole table
      AND ((SELECT true FROM timers AS t
            WHERE t.execution = e.key AND t.due_at <= coalesce($2::timestamptz, clock_timestamp())) IS NOT NULL
           OR (SELECT true FROM waits AS w
               CROSS JOIN LATERAL (SELECT FROM executions AS c WHERE c.key = w.child AND c.status >= 4 OFFSET 0) AS c
               WHERE w.execution = e.key LIMIT 1) IS NOT NULL)
    RETURNING e.key, e.workflow, e.app_version, u.n
), unarmed AS (
    DELETE FROM timers WHERE execution = ANY(ARRAY(SELECT key FROM woken)) RETURNING 1
), unwaited AS (
    DELETE FROM waits WHERE execution = ANY(ARRAY(SELECT key FROM woken)) RETURNING 1
), queued AS (
    INSERT INTO ready (execution, workflow, app_version)
    SELECT key, workflow, app_version FROM woken ORDER BY n ON CONFLICT DO NOTHING
)
SELECT key, (SELECT count(*) FROM unarmed), (SELECT count(*) FROM unwaited) FROM woken
