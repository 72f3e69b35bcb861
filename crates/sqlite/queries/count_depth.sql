-- The number of executions of a queue that have not begun: ready for the first time, or scheduled. Both tables are in the
-- order of their streams. The query skips from one pair of workflow and version to the next: rtrim removes the queue from a
-- stream, and char(2) follows the separator. 1 queue
WITH RECURSIVE ready_pairs (prefix) AS (
    SELECT (SELECT rtrim(stream, replace(stream, char(1), '')) FROM ready WHERE stream >= '' ORDER BY stream LIMIT 1)
    UNION ALL
    SELECT (SELECT rtrim(stream, replace(stream, char(1), '')) FROM ready
            WHERE stream > substr(p.prefix, 1, length(p.prefix) - 1) || char(2) ORDER BY stream LIMIT 1)
    FROM ready_pairs AS p WHERE p.prefix IS NOT NULL
),
timer_pairs (prefix) AS (
    SELECT (SELECT rtrim(stream, replace(stream, char(1), '')) FROM timers
            WHERE is_scheduled = 1 AND stream >= '' ORDER BY stream LIMIT 1)
    UNION ALL
    SELECT (SELECT rtrim(stream, replace(stream, char(1), '')) FROM timers
            WHERE is_scheduled = 1 AND stream > substr(p.prefix, 1, length(p.prefix) - 1) || char(2) ORDER BY stream LIMIT 1)
    FROM timer_pairs AS p WHERE p.prefix IS NOT NULL
)
SELECT
    (SELECT count(*) FROM ready_pairs AS p CROSS JOIN ready AS r WHERE r.stream = p.prefix || ?1 AND r.seq > 0)
    + (SELECT count(*) FROM timer_pairs AS p CROSS JOIN timers AS t WHERE t.is_scheduled = 1 AND t.stream = p.prefix || ?1)
