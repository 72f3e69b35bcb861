-- Returns what concerns a worker. $1: the worker, $2: its epoch, $3: the time now, null for the server's, $4: the executions
-- that it watches, $5: its workflows, $6: its version of the code, null for any, $7: the queues that it serves, null for
-- all. Ready executions, timers and the quarantine are searched by hopping along an index, from one of the worker's routes
-- to the next, so that the rows of other workers are not read.
-- The commit does not wait for a flush of the log, because only a postponed deadline could be lost.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now, set_config('synchronous_commit', 'off', true)
), expired AS (
    -- the next looks, also those of other workers, skip these executions for some seconds
    UPDATE deadlines AS d
    SET due_at = clock.now + interval '5 seconds'
    FROM clock
    WHERE d.execution = ANY(ARRAY(SELECT execution FROM deadlines
                                  WHERE due_at <= (SELECT now FROM clock)
                                  ORDER BY due_at
                                  LIMIT 500 FOR UPDATE SKIP LOCKED))
    RETURNING d.execution
), timer_routes (route, until) AS (
    SELECT (w.workflow || E'\x01') COLLATE "C", (w.workflow || E'\x02') COLLATE "C" FROM unnest($5::text[]) AS w (workflow)
  UNION ALL
    SELECT n.route, s.until
    FROM timer_routes AS s
    CROSS JOIN LATERAL (SELECT t.route FROM timers AS t WHERE t.route > s.route AND t.route < s.until
                        ORDER BY t.route LIMIT 1) AS n
), ready_routes (route, until) AS (
    SELECT (w.workflow || E'\x01') COLLATE "C", (w.workflow || E'\x02') COLLATE "C" FROM unnest($5::text[]) AS w (workflow)
  UNION ALL
    SELECT n.route, s.until
    FROM ready_routes AS s
    CROSS JOIN LATERAL (SELECT r.route FROM ready AS r WHERE r.route > s.route AND r.route < s.until
                        ORDER BY r.route LIMIT 1) AS n
), quarantine_versions (workflow, app_version) AS (
    SELECT v.workflow, v.app_version
    FROM unnest($5::text[]) AS w (workflow)
    CROSS JOIN LATERAL (SELECT q.workflow, q.app_version FROM quarantine AS q
                        WHERE q.workflow = w.workflow ORDER BY q.app_version LIMIT 1) AS v
  UNION ALL
    SELECT n.workflow, n.app_version
    FROM quarantine_versions AS v
    CROSS JOIN LATERAL (SELECT q.workflow, q.app_version FROM quarantine AS q
                        WHERE q.workflow = v.workflow AND q.app_version > v.app_version
                        ORDER BY q.app_version LIMIT 1) AS n
)
SELECT clock.now,
       EXISTS (SELECT FROM workers AS w WHERE w.worker_id = $1::bigint AND w.epoch = $2::bigint),
       asked.executions, asked.kinds, asked.ids,
       ARRAY(SELECT u.key
             FROM unnest($4::uuid[]) AS u (key)
             CROSS JOIN LATERAL (SELECT FROM executions AS e
                                 WHERE e.key = u.key AND (e.status >= 4 OR e.is_paused) OFFSET 0) AS e),
       EXISTS (SELECT FROM ready_routes AS s
               CROSS JOIN LATERAL (SELECT split_part(s.route, E'\x01', 3) AS queue) AS p
               -- the text before the first route has no queue
               WHERE p.queue <> '' AND ($6::text IS NULL OR split_part(s.route, E'\x01', 2) IN ('', $6::text))
                 AND ($7::text[] IS NULL OR p.queue = ANY($7::text[]))
                 AND (SELECT q.is_paused FROM queues AS q WHERE q.name = p.queue) IS NOT TRUE)
       OR (SELECT true FROM inbox ORDER BY id LIMIT 1) IS NOT NULL,
       (SELECT min(t.due_at)
        FROM timer_routes AS s
        CROSS JOIN LATERAL (SELECT t.due_at FROM timers AS t WHERE t.route = s.route ORDER BY t.due_at LIMIT 1) AS t
        WHERE ($6::text IS NULL OR split_part(s.route, E'\x01', 2) IN ('', $6::text))
          AND ($7::text[] IS NULL OR split_part(s.route, E'\x01', 3) = ANY($7::text[]))),
       ARRAY(SELECT execution FROM expired),
       (SELECT d.due_at FROM deadlines AS d WHERE d.due_at > clock.now ORDER BY d.due_at LIMIT 1),
       (SELECT min(q.due_at)
        FROM quarantine_versions AS v
        CROSS JOIN LATERAL (SELECT q.due_at FROM quarantine AS q
                            WHERE q.workflow = v.workflow AND q.app_version = v.app_version
                            ORDER BY q.due_at LIMIT 1) AS q
        WHERE $6::text IS NULL OR v.app_version IN ('', $6::text))
FROM clock
CROSS JOIN LATERAL (
    SELECT array_agg(r.execution ORDER BY r.execution, r.n) AS executions,
           array_agg(r.kind ORDER BY r.execution, r.n) AS kinds,
           array_agg(r.n ORDER BY r.execution, r.n) AS ids
    -- apart from the aggregates, for whose order newer servers would walk through the requests to all workers
    FROM (SELECT r.execution, r.n, r.kind FROM requests AS r WHERE r.worker_id = $1::bigint OFFSET 0) AS r
    CROSS JOIN LATERAL (SELECT FROM executions AS e
                        WHERE e.key = r.execution AND e.status = 2 AND e.owner = $1::bigint
                        OFFSET 0) AS e
) AS asked
