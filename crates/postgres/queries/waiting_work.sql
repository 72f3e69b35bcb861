-- Counts the executions that wait for a worker, by workflow and version of the code. $1: the time now, null for the
-- server's, $2: the maximum number of executions to count.
SELECT workflow, app_version, count(*)
FROM (SELECT r.workflow, r.app_version FROM ready AS r
      UNION ALL
      SELECT q.workflow, q.app_version FROM quarantine AS q
      UNION ALL
      SELECT e.workflow, e.app_version
      FROM timers AS t
      JOIN executions AS e ON e.key = t.execution
      WHERE t.due_at <= coalesce($1::timestamptz, clock_timestamp()) AND e.status IN (0, 3)
      LIMIT $2::bigint) AS w
GROUP BY workflow, app_version
ORDER BY workflow, app_version NULLS FIRST
