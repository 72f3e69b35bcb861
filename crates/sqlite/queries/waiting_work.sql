-- Executions that wait for a worker, by workflow and version of the code: the prefix of their streams. 1 the time now, 2
-- maximum number of counted executions. Due timers are found by skipping from one stream to the next; rtrim removes the
-- queue from a stream.
WITH RECURSIVE streams (stream) AS (
    SELECT (SELECT stream FROM timers WHERE stream >= '' ORDER BY stream LIMIT 1)
    UNION ALL
    SELECT (SELECT timers.stream FROM timers WHERE timers.stream > s.stream ORDER BY timers.stream LIMIT 1)
    FROM streams AS s WHERE s.stream IS NOT NULL
)
SELECT prefix, count(*) FROM (
    SELECT rtrim(stream, replace(stream, char(1), '')) AS prefix FROM ready
    UNION ALL
    SELECT workflow || char(1) || app_version || char(1) FROM quarantine
    UNION ALL
    SELECT rtrim(streams.stream, replace(streams.stream, char(1), ''))
    FROM streams CROSS JOIN timers ON timers.stream = streams.stream
    WHERE timers.due_at <= ?1
    LIMIT ?2
)
GROUP BY prefix ORDER BY prefix
