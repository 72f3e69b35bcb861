-- $1: executions, locked before; $2: the time now, null for the server's.
WITH woken AS (
    UPDATE executions AS e
    SET status = 1
    FROM unnest($1::uuid[]) WITH ORDINALITY AS u (key, n)
    WHERE e.key = u.key AND e.status = 3
      AND (EXISTS (SELECT FROM timers AS t
                   WHERE t.execution = e.key AND t.due_at <= coalesce($2::timestamptz, clock_timestamp()))
           OR EXISTS (SELECT FROM waits AS w JOIN executions AS c ON c.key = w.child
                      WHERE w.execution = e.key AND c.status >= 4))
    RETURNING e.key, e.workflow, u.n
), unarmed AS (
    DELETE FROM timers AS t USING woken WHERE t.execution = woken.key RETURNING 1
), unwaited AS (
    DELETE FROM waits AS w USING woken WHERE w.execution = woken.key RETURNING 1
), queued AS (
    INSERT INTO ready (execution, workflow) SELECT key, workflow FROM woken ORDER BY n ON CONFLICT DO NOTHING
)
SELECT key, (SELECT count(*) FROM unarmed), (SELECT count(*) FROM unwaited) FROM woken
