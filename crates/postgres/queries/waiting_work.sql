-- Counts the executions that wait for a worker, by workflow and version of the code. $1: the time now, null for the
-- server's, $2: the maximum number of executions to count of each stream, and of those in quarantine. Streams are found by
-- hopping along the index from one to the next.
WITH RECURSIVE ready_streams (stream) AS (
    (SELECT r.stream FROM ready AS r ORDER BY r.stream LIMIT 1)
  UNION ALL
    SELECT n.stream
    FROM ready_streams AS s
    CROSS JOIN LATERAL (SELECT r.stream FROM ready AS r WHERE r.stream > s.stream ORDER BY r.stream LIMIT 1) AS n
),
timer_streams (stream) AS (
    (SELECT t.stream FROM timers AS t ORDER BY t.stream LIMIT 1)
  UNION ALL
    SELECT n.stream
    FROM timer_streams AS s
    CROSS JOIN LATERAL (SELECT t.stream FROM timers AS t WHERE t.stream > s.stream ORDER BY t.stream LIMIT 1) AS n
)
SELECT w.workflow, nullif(w.app_version, ''), count(*)
FROM (SELECT split_part(s.stream, E'\x01', 1) AS workflow, split_part(s.stream, E'\x01', 2) AS app_version
      FROM ready_streams AS s
      CROSS JOIN LATERAL (SELECT FROM ready AS r WHERE r.stream = s.stream LIMIT $2::bigint) AS r
      UNION ALL
      (SELECT q.workflow, q.app_version FROM quarantine AS q LIMIT $2::bigint)
      UNION ALL
      SELECT split_part(s.stream, E'\x01', 1), split_part(s.stream, E'\x01', 2)
      FROM timer_streams AS s
      CROSS JOIN LATERAL (SELECT FROM timers AS t
                          WHERE t.stream = s.stream AND t.due_at <= coalesce($1::timestamptz, clock_timestamp())
                          LIMIT $2::bigint) AS t) AS w
GROUP BY w.workflow, w.app_version
ORDER BY w.workflow, w.app_version
