-- Returns the time, whether executions are due, and whether the inbox has a row: the routes of the worker that have a due
-- timer, found by hopping along the index from a text before the routes of a workflow to a text after them. $1: the
-- workflows, $2: the time now, null for the server's, $3: the version of the code, null for any, $4: the queues that are
-- served, null for all.
WITH RECURSIVE routes (route, until) AS (
    SELECT (w.workflow || E'\x01') COLLATE "C", (w.workflow || E'\x02') COLLATE "C" FROM unnest($1::text[]) AS w (workflow)
  UNION ALL
    SELECT n.route, s.until
    FROM routes AS s
    CROSS JOIN LATERAL (SELECT t.route FROM timers AS t WHERE t.route > s.route AND t.route < s.until
                        ORDER BY t.route LIMIT 1) AS n
)
SELECT c.now, due.routes, (SELECT true FROM inbox ORDER BY id LIMIT 1) IS TRUE
FROM (SELECT coalesce($2::timestamptz, clock_timestamp()) AS now) AS c
CROSS JOIN LATERAL (
    SELECT array_agg(s.route) AS routes
    FROM routes AS s
    WHERE ($3::text IS NULL OR split_part(s.route, E'\x01', 2) IN ('', $3::text))
      AND ($4::text[] IS NULL OR split_part(s.route, E'\x01', 3) = ANY($4::text[]))
      AND (SELECT true FROM timers AS t WHERE t.route = s.route AND t.due_at <= c.now LIMIT 1)
) AS due
