-- Creates or changes a queue. $1: name, $2: version, $3: the time now, null for the server's, $4: is_paused, $5:
-- is_serial, $6 to $14: limits, $15: max_depth, $16: key_weights. The statement waits for claims in progress, and for
-- Starts that enter the queue. If a rate changes, the recorded starts of all rates of the queue are deleted. Returns the
-- time of the change, and whether the queue already limited how many executions run. If so, its running executions have
-- slots.
WITH before AS (
    SELECT name FROM queues
    WHERE name = $1::text AND version = $2::bigint - 1
      AND (rate_starts, rate_period_ms, rate_burst, key_rate_starts, key_rate_period_ms, key_rate_burst)
          IS DISTINCT FROM ($9::integer, $10::bigint, $11::integer, $12::integer, $13::bigint, $14::integer)
), forgotten AS (
    DELETE FROM rates WHERE queue IN (SELECT name FROM before)
), changing AS (
    SELECT $1::text AS name
    WHERE (SELECT version FROM queues WHERE name = $1::text) IS NOT DISTINCT FROM nullif($2::bigint - 1, 0)
), deep AS (
    INSERT INTO depths (queue, max_depth, bound)
    SELECT name, $15::integer, 9223372036854775807 FROM changing WHERE $15::integer IS NOT NULL
    ON CONFLICT (queue) DO UPDATE SET max_depth = excluded.max_depth, bound = excluded.bound
), boundless AS (
    DELETE FROM depths WHERE queue IN (SELECT name FROM changing) AND $15::integer IS NULL
)
INSERT INTO queues (name, version, changed_at, is_paused, is_serial, concurrency, worker_concurrency, key_concurrency,
                    rate_starts, rate_period_ms, rate_burst, key_rate_starts, key_rate_period_ms, key_rate_burst,
                    key_weights)
VALUES ($1::text, $2::bigint, coalesce($3::timestamptz, clock_timestamp()), $4::boolean, $5::boolean, $6::integer,
        $7::integer, $8::integer, $9::integer, $10::bigint, $11::integer, $12::integer, $13::bigint, $14::integer,
        $16::text)
ON CONFLICT (name) DO UPDATE
SET version = excluded.version, changed_at = excluded.changed_at, is_paused = excluded.is_paused,
    is_serial = excluded.is_serial, concurrency = excluded.concurrency,
    worker_concurrency = excluded.worker_concurrency, key_concurrency = excluded.key_concurrency,
    rate_starts = excluded.rate_starts, rate_period_ms = excluded.rate_period_ms, rate_burst = excluded.rate_burst,
    key_rate_starts = excluded.key_rate_starts, key_rate_period_ms = excluded.key_rate_period_ms,
    key_rate_burst = excluded.key_rate_burst, key_weights = excluded.key_weights
WHERE queues.version = $2::bigint - 1
RETURNING changed_at,
          (SELECT coalesce(q.concurrency, q.worker_concurrency, q.key_concurrency) IS NOT NULL
           FROM queues AS q WHERE q.name = $1::text) IS TRUE
