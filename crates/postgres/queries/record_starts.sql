-- Records starts that count for rates, and deletes entries that no longer count. $1: queues, $2: whether the rate is of a
-- key, $3: the keys, $4: the time up to which entries are deleted, $5: the time of the starts, $6: their number.
-- A key may never start again. So each claim of a queue also deletes entries of other keys, more than it can insert. With
-- even spacing an entry is at most a whole burst ahead of the present time, and counts for at most a period.
WITH u AS MATERIALIZED (
    SELECT unnest($1::text[]) AS queue, unnest($2::boolean[]) AS is_key, unnest($3::text[]) AS queue_key,
           unnest($4::timestamptz[]) AS until, unnest($5::timestamptz[]) AS at, unnest($6::bigint[]) AS starts
), forgotten AS (
    DELETE FROM rates
    WHERE ctid = ANY(ARRAY(
        SELECT r.ctid
        FROM u
        CROSS JOIN LATERAL (SELECT r.ctid FROM rates AS r
                            WHERE r.queue = u.queue AND r.is_key = u.is_key AND r.queue_key = u.queue_key
                              AND r.at <= u.until AND r.at <> u.at
                            OFFSET 0) AS r))
), expired AS (
    DELETE FROM rates
    WHERE ctid = ANY(ARRAY(
        SELECT r.ctid
        FROM (SELECT u.queue,
                     min(CASE WHEN q.burst IS NULL THEN u.until
                              WHEN q.span < 3e12 THEN u.at - q.span * interval '1 millisecond'
                              ELSE '-infinity' END) AS until
              FROM u
              CROSS JOIN LATERAL (SELECT q.key_rate_burst AS burst,
                                         q.key_rate_period_ms::double precision
                                         * (2 + q.key_rate_burst::double precision / greatest(q.key_rate_starts, 1))
                                         AS span
                                  FROM queues AS q
                                  WHERE q.name = u.queue
                                  OFFSET 0) AS q
              WHERE u.is_key
              GROUP BY u.queue) AS c
        CROSS JOIN LATERAL (SELECT r.ctid FROM rates AS r
                            WHERE r.queue = c.queue AND r.is_key AND r.at <= c.until
                            ORDER BY r.at
                            LIMIT 2000) AS r))
)
INSERT INTO rates (queue, is_key, queue_key, at, starts)
SELECT queue, is_key, queue_key, at, starts FROM u
ON CONFLICT (queue, is_key, queue_key, at) DO UPDATE SET starts = rates.starts + excluded.starts
