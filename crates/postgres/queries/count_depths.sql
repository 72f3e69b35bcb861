-- Counts, for each queue, the executions that have not begun: ready for the first time, or scheduled. The ready ones and the
-- timers are in the order of their routes, so both are found by hopping from one pair of workflow and version to the next.
-- A prefix is a route without its queue; \x02 follows the separator. $1: queues.
WITH RECURSIVE pairs (is_timer, prefix) AS (
    SELECT true, left(t.route, -length(split_part(t.route, E'\x01', 3)))
    FROM (SELECT t.route FROM timers AS t WHERE t.is_scheduled ORDER BY t.route LIMIT 1) AS t
  UNION ALL
    SELECT false, left(r.route, -length(split_part(r.route, E'\x01', 3)))
    FROM (SELECT r.route FROM ready AS r ORDER BY r.route LIMIT 1) AS r
  UNION ALL
    SELECT p.is_timer, left(n.route, -length(split_part(n.route, E'\x01', 3)))
    FROM pairs AS p
    CROSS JOIN LATERAL (
        (SELECT t.route FROM timers AS t
         WHERE p.is_timer AND t.is_scheduled AND t.route > left(p.prefix, -1) || E'\x02'
         ORDER BY t.route LIMIT 1)
      UNION ALL
        (SELECT r.route FROM ready AS r WHERE NOT p.is_timer AND r.route > left(p.prefix, -1) || E'\x02'
         ORDER BY r.route LIMIT 1)
    ) AS n
)
SELECT u.queue,
       (SELECT count(*) FROM pairs AS p
        CROSS JOIN LATERAL (SELECT FROM ready AS r WHERE r.route = p.prefix || u.queue AND r.seq > 0 OFFSET 0) AS r
        WHERE NOT p.is_timer)
       + (SELECT count(*) FROM pairs AS p
          CROSS JOIN LATERAL (SELECT FROM timers AS t
                              WHERE t.is_scheduled AND t.route = p.prefix || u.queue OFFSET 0) AS t
          WHERE p.is_timer)
FROM unnest($1::text[]) AS u (queue)
