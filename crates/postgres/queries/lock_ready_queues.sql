-- Returns the queues that have ready executions of the worker's workflows, with their settings, and locks the settings.
-- Routes are found by hopping from one to the next along the index; those that the last claim took from are given, and need
-- no hop. $1: the queues that are served, null for all, $2: if given, these queues instead of those with ready executions,
-- $3: the worker's workflows, $4: its version, null for any, $5: the routes that the last claim took from, $6: false to
-- claim without taking turns.
-- The lock is exclusive where limits allow only one claim at a time, and shared elsewhere, so that nothing is changed in
-- the meantime. The statement's snapshot may be older than the lock: a later statement compares the versions of the queues.
-- Where the lock is shared, claims of the same routes take turns by other advisory locks. Two claims at a time would scan the
-- same rows, and lock rows that the other one has just taken. Claims of other services have other routes. A few of these locks
-- stand for all routes of a schema, because only speed depends on them.
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route COLLATE "C" AS route, split_part(k.route, E'\x01', 1) AS workflow
    FROM unnest($5::text[]) AS k (route)
    -- the last claim may have been for other workflows
    WHERE $2::text[] IS NULL AND split_part(k.route, E'\x01', 1) = ANY($3::text[])
), gaps AS (
    -- from a text before the routes of a workflow to the first known one, and so on, up to a text after them
    SELECT g.route, coalesce(lead(g.route) OVER (PARTITION BY g.workflow ORDER BY g.route),
                              (g.workflow || E'\x02') COLLATE "C") AS until
    FROM (SELECT w.workflow, (w.workflow || E'\x01') COLLATE "C" AS route FROM unnest($3::text[]) AS w (workflow)
          WHERE $2::text[] IS NULL
          UNION ALL
          SELECT k.workflow, k.route FROM known AS k) AS g
), hops (route, until, is_found) AS (
    SELECT g.route, g.until, false FROM gaps AS g
  UNION ALL
    SELECT n.route, h.until, true
    FROM hops AS h
    CROSS JOIN LATERAL (SELECT r.route FROM ready AS r WHERE r.route > h.route AND r.route < h.until
                        ORDER BY r.route LIMIT 1) AS n
), routes AS MATERIALIZED (
    SELECT s.route, s.queue
    FROM (SELECT s.route, split_part(s.route, E'\x01', 2) AS app_version, split_part(s.route, E'\x01', 3) AS queue
          FROM (SELECT h.route FROM hops AS h WHERE h.is_found
                UNION ALL
                SELECT k.route FROM known AS k) AS s) AS s
    WHERE ($1::text[] IS NULL OR s.queue = ANY($1::text[])) AND ($4::text IS NULL OR s.app_version IN ('', $4::text))
), served AS MATERIALIZED (
    -- the routes of each queue once: a subquery per queue would read all routes each time
    SELECT s.queue, array_agg(s.route ORDER BY s.route) FILTER (WHERE s.route IS NOT NULL) AS routes
    FROM (SELECT x.queue, x.route FROM routes AS x UNION ALL SELECT unnest($2::text[]), NULL) AS s
    WHERE $1::text[] IS NULL OR s.queue = ANY($1::text[])
    GROUP BY s.queue
), states AS MATERIALIZED (
    SELECT s.queue, s.routes, q.*,
           CASE WHEN q.is_paused THEN NULL
                WHEN q.is_serial
                THEN pg_try_advisory_xact_lock(hashtext('stepfast queues ' || current_schema()), hashtext(s.queue) & 255)
                ELSE pg_try_advisory_xact_lock_shared(hashtext('stepfast queues ' || current_schema()),
                                                      hashtext(s.queue) & 255) END AS is_held
    FROM served AS s
    LEFT JOIN LATERAL (SELECT q.* FROM queues AS q WHERE q.name = s.queue OFFSET 0) AS q ON true
), turns AS MATERIALIZED (
    SELECT s.*,
           CASE WHEN $6::boolean AND s.is_held AND s.is_serial IS NOT TRUE
                THEN pg_try_advisory_xact_lock(hashtext('stepfast.' || current_schema()), hashtext(s.routes[1]) & 63)
                END AS is_ours
    FROM states AS s
)
SELECT s.queue, s.version,
       CASE WHEN s.is_held IS NULL THEN 'paused'
            WHEN NOT s.is_held THEN 'locked'
            WHEN NOT s.is_ours THEN 'contended'
            ELSE 'open' END,
       s.concurrency, s.worker_concurrency, s.key_concurrency, s.rate_starts, s.rate_period_ms, s.rate_burst,
       s.key_rate_starts, s.key_rate_period_ms, s.key_rate_burst, s.key_weights,
       coalesce(s.routes, '{}'),
       (SELECT true FROM unnest(s.routes) AS x (route)
        CROSS JOIN LATERAL (SELECT FROM ready AS r WHERE r.route = x.route AND r.queue_key > '' LIMIT 1) AS r
        LIMIT 1) IS TRUE AS has_keys,
       -- only claims under a rate need has_woken
       coalesce(s.rate_starts, s.key_rate_starts) IS NOT NULL
       AND (SELECT true FROM unnest(s.routes) AS x (route)
            CROSS JOIN LATERAL (SELECT FROM ready AS r WHERE r.route = x.route AND r.is_woken LIMIT 1) AS r
            LIMIT 1) IS TRUE AS has_woken
FROM turns AS s
ORDER BY s.queue
