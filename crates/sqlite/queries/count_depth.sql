-- The number of executions of a queue that have not begun: ready for the first time, or scheduled. Both tables are in the
-- order of their routes. The query skips from one pair of workflow and version to the next: rtrim removes the queue from a
-- route, and char(2) follows the separator. 1 queue
WITH RECURSIVE ready_pairs (prefix) AS (
    SELECT (SELECT rtrim(route, replace(route, char(1), '')) FROM ready WHERE route >= '' ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT rtrim(route, replace(route, char(1), '')) FROM ready
            WHERE route > substr(p.prefix, 1, length(p.prefix) - 1) || char(2) ORDER BY route LIMIT 1)
    FROM ready_pairs AS p WHERE p.prefix IS NOT NULL
),
timer_pairs (prefix) AS (
    SELECT (SELECT rtrim(route, replace(route, char(1), '')) FROM timers
            WHERE is_scheduled = 1 AND route >= '' ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT rtrim(route, replace(route, char(1), '')) FROM timers
            WHERE is_scheduled = 1 AND route > substr(p.prefix, 1, length(p.prefix) - 1) || char(2) ORDER BY route LIMIT 1)
    FROM timer_pairs AS p WHERE p.prefix IS NOT NULL
)
SELECT
    (SELECT count(*) FROM ready_pairs AS p CROSS JOIN ready AS r WHERE r.route = p.prefix || ?1 AND r.seq > 0)
    + (SELECT count(*) FROM timer_pairs AS p CROSS JOIN timers AS t WHERE t.is_scheduled = 1 AND t.route = p.prefix || ?1)
