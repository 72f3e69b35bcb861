-- Executions that wait for a worker, by workflow and version of the code: the prefix of their routes. 1 the time now, 2
-- maximum number of counted executions of a route, and of those in quarantine. Routes are found by skipping from one to
-- the next; rtrim removes the queue from a route.
WITH RECURSIVE ready_routes (route) AS (
    SELECT (SELECT route FROM ready WHERE route >= '' ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT ready.route FROM ready WHERE ready.route > s.route ORDER BY ready.route LIMIT 1)
    FROM ready_routes AS s WHERE s.route IS NOT NULL
),
timer_routes (route) AS (
    SELECT (SELECT route FROM timers WHERE route >= '' ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT timers.route FROM timers WHERE timers.route > s.route ORDER BY timers.route LIMIT 1)
    FROM timer_routes AS s WHERE s.route IS NOT NULL
)
SELECT prefix, sum(executions) FROM (
    SELECT rtrim(s.route, replace(s.route, char(1), '')) AS prefix,
        (SELECT count(*) FROM (SELECT 1 FROM ready WHERE ready.route = s.route LIMIT ?2)) AS executions
    FROM ready_routes AS s WHERE s.route IS NOT NULL
    UNION ALL
    SELECT q.workflow || char(1) || q.app_version || char(1), 1
    FROM (SELECT workflow, app_version FROM quarantine LIMIT ?2) AS q
    UNION ALL
    SELECT rtrim(s.route, replace(s.route, char(1), '')),
        (SELECT count(*) FROM
            (SELECT 1 FROM timers WHERE timers.route = s.route AND timers.due_at <= ?1 LIMIT ?2))
    FROM timer_routes AS s WHERE s.route IS NOT NULL
)
GROUP BY prefix HAVING sum(executions) > 0 ORDER BY prefix
