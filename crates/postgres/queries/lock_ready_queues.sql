-- Returns and locks the queues that have ready executions, with the limits of those that were declared. Queues are found
-- by hopping from one to the next along the index; the queues that the last claim took from are given, and need no hop. A
-- claim holds a lock on the row of each declared queue. The lock is exclusive where limits allow only one claim at a
-- time. Elsewhere the lock is shared, so that no limits can be set in the meantime.
-- Where nothing else keeps claims apart, on queues with a shared lock and on undeclared queues, claims take turns by
-- advisory locks. Two claims at a time would scan the same rows, and lock rows that the other one has just taken. A few
-- advisory locks stand for all queues of a schema, because only speed depends on them. $1: the queues that are served,
-- null for all, $2: if given, these queues instead of those with ready executions, $3: the queues that the last claim
-- took from, $4: false to claim without taking turns.
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.queue COLLATE "C" AS queue FROM unnest($3::text[]) AS k (queue) WHERE $2::text[] IS NULL
), gaps (behind, before) AS (
    SELECT lag(k.queue, 1, '') OVER (ORDER BY k.queue), k.queue FROM known AS k
  UNION ALL
    SELECT coalesce(max(k.queue), ''), NULL FROM known AS k HAVING $2::text[] IS NULL
), hops (queue, before) AS (
    SELECT CASE WHEN g.before IS NULL
                THEN (SELECT r.queue FROM ready AS r WHERE r.queue > g.behind ORDER BY r.queue LIMIT 1)
                ELSE (SELECT r.queue FROM ready AS r
                      WHERE r.queue > g.behind AND r.queue < g.before ORDER BY r.queue LIMIT 1) END,
           g.before
    FROM gaps AS g
  UNION ALL
    SELECT CASE WHEN h.before IS NULL
                THEN (SELECT r.queue FROM ready AS r WHERE r.queue > h.queue ORDER BY r.queue LIMIT 1)
                ELSE (SELECT r.queue FROM ready AS r
                      WHERE r.queue > h.queue AND r.queue < h.before ORDER BY r.queue LIMIT 1) END,
           h.before
    FROM hops AS h
    WHERE h.queue IS NOT NULL
), served AS MATERIALIZED (
    SELECT n.queue
    FROM (SELECT h.queue FROM hops AS h WHERE h.queue IS NOT NULL
          UNION ALL
          SELECT k.queue FROM known AS k
          UNION ALL
          SELECT unnest($2::text[])) AS n
    WHERE $1::text[] IS NULL OR n.queue = ANY($1::text[])
), turns AS MATERIALIZED (
    SELECT s.queue,
           CASE WHEN $4::boolean
                THEN pg_try_advisory_xact_lock(hashtext('stepfast.' || current_schema()), hashtext(s.queue) & 63)
                ELSE true END AS is_ours
    FROM served AS s
    WHERE NOT EXISTS (SELECT FROM queues AS q WHERE q.name = s.queue AND (q.is_serial OR q.is_paused))
), locked AS MATERIALIZED (
    SELECT q.*
    FROM served AS s
    CROSS JOIN LATERAL (SELECT name, concurrency, worker_concurrency, key_concurrency,
                               rate_starts, rate_period_ms, rate_burst, key_rate_starts, key_rate_period_ms, key_rate_burst,
                               key_weights
                        FROM queues
                        WHERE name = s.queue AND is_serial AND NOT is_paused
                        OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) AS q
), shared AS MATERIALIZED (
    SELECT q.*
    FROM served AS s
    CROSS JOIN LATERAL (SELECT name, concurrency, worker_concurrency, key_concurrency,
                               rate_starts, rate_period_ms, rate_burst, key_rate_starts, key_rate_period_ms, key_rate_burst,
                               key_weights
                        FROM queues
                        WHERE name = s.queue AND NOT is_serial AND NOT is_paused
                        OFFSET 0 FOR SHARE SKIP LOCKED) AS q
), held AS (
    SELECT * FROM locked UNION ALL SELECT * FROM shared
)
SELECT s.queue,
       h.name IS NOT NULL AS is_held,
       h.name IS NULL AND (SELECT NOT q.is_paused FROM queues AS q WHERE q.name = s.queue) IS TRUE AS is_locked,
       h.name IS NULL AND (SELECT true FROM queues AS q WHERE q.name = s.queue) IS NULL AS is_free,
       (SELECT NOT t.is_ours FROM turns AS t WHERE t.queue = s.queue) IS TRUE AS is_awaited,
       h.concurrency, h.worker_concurrency, h.key_concurrency, h.rate_starts, h.rate_period_ms, h.rate_burst,
       h.key_rate_starts, h.key_rate_period_ms, h.key_rate_burst, h.key_weights,
       (SELECT true FROM ready AS r WHERE r.queue = s.queue AND r.queue_key > '' LIMIT 1) IS TRUE AS has_keys,
       -- only claims under a rate need has_woken
       coalesce(h.rate_starts, h.key_rate_starts) IS NOT NULL
           AND (SELECT true FROM ready AS r WHERE r.queue = s.queue AND r.is_woken LIMIT 1) IS TRUE AS has_woken
FROM served AS s
LEFT JOIN held AS h ON h.name = s.queue
ORDER BY s.queue
