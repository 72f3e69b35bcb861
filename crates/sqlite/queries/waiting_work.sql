-- Executions that wait for a worker, by workflow and version of the code: the prefix of their streams. 1 the time now, 2
-- maximum number of counted executions of a stream, and of those in quarantine. Streams are found by skipping from one to
-- the next; rtrim removes the queue from a stream.
WITH RECURSIVE ready_streams (stream) AS (
    SELECT (SELECT stream FROM ready WHERE stream >= '' ORDER BY stream LIMIT 1)
    UNION ALL
    SELECT (SELECT ready.stream FROM ready WHERE ready.stream > s.stream ORDER BY ready.stream LIMIT 1)
    FROM ready_streams AS s WHERE s.stream IS NOT NULL
),
timer_streams (stream) AS (
    SELECT (SELECT stream FROM timers WHERE stream >= '' ORDER BY stream LIMIT 1)
    UNION ALL
    SELECT (SELECT timers.stream FROM timers WHERE timers.stream > s.stream ORDER BY timers.stream LIMIT 1)
    FROM timer_streams AS s WHERE s.stream IS NOT NULL
)
SELECT prefix, sum(executions) FROM (
    SELECT rtrim(s.stream, replace(s.stream, char(1), '')) AS prefix,
        (SELECT count(*) FROM (SELECT 1 FROM ready WHERE ready.stream = s.stream LIMIT ?2)) AS executions
    FROM ready_streams AS s WHERE s.stream IS NOT NULL
    UNION ALL
    SELECT q.workflow || char(1) || q.app_version || char(1), 1
    FROM (SELECT workflow, app_version FROM quarantine LIMIT ?2) AS q
    UNION ALL
    SELECT rtrim(s.stream, replace(s.stream, char(1), '')),
        (SELECT count(*) FROM
            (SELECT 1 FROM timers WHERE timers.stream = s.stream AND timers.due_at <= ?1 LIMIT ?2))
    FROM timer_streams AS s WHERE s.stream IS NOT NULL
)
GROUP BY prefix HAVING sum(executions) > 0 ORDER BY prefix
