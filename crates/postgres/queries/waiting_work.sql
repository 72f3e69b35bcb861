-- Counts the executions that wait for a worker, by workflow and version of the code. $1: the time now, null for the
-- server's, $2: the maximum number of executions to count of each route, and of those in quarantine. Routes are found by
-- hopping along the index from one to the next.
WITH RECURSIVE ready_routes (route) AS (
    (SELECT r.route FROM ready AS r ORDER BY r.route LIMIT 1)
  UNION ALL
    SELECT n.route
    FROM ready_routes AS s
    CROSS JOIN LATERAL (SELECT r.route FROM ready AS r WHERE r.route > s.route ORDER BY r.route LIMIT 1) AS n
),
timer_routes (route) AS (
    (SELECT t.route FROM timers AS t ORDER BY t.route LIMIT 1)
  UNION ALL
    SELECT n.route
    FROM timer_routes AS s
    CROSS JOIN LATERAL (SELECT t.route FROM timers AS t WHERE t.route > s.route ORDER BY t.route LIMIT 1) AS n
)
SELECT w.workflow, nullif(w.app_version, ''), count(*)
FROM (SELECT split_part(s.route, E'\x01', 1) AS workflow, split_part(s.route, E'\x01', 2) AS app_version
      FROM ready_routes AS s
      CROSS JOIN LATERAL (SELECT FROM ready AS r WHERE r.route = s.route LIMIT $2::bigint) AS r
      UNION ALL
      (SELECT q.workflow, q.app_version FROM quarantine AS q LIMIT $2::bigint)
      UNION ALL
      SELECT split_part(s.route, E'\x01', 1), split_part(s.route, E'\x01', 2)
      FROM timer_routes AS s
      CROSS JOIN LATERAL (SELECT FROM timers AS t
                          WHERE t.route = s.route AND t.due_at <= coalesce($1::timestamptz, clock_timestamp())
                          LIMIT $2::bigint) AS t) AS w
GROUP BY w.workflow, w.app_version
ORDER BY w.workflow, w.app_version
