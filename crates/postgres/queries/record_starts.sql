-- Records starts that count for rates, and deletes entries that no longer count. $1: queues, $2: whether the rate is of a
-- key, $3: the keys, $4: the time up to which entries are deleted, $5: the time of the starts, $6: their number.
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
)
INSERT INTO rates (queue, is_key, queue_key, at, starts)
SELECT queue, is_key, queue_key, at, starts FROM u
ON CONFLICT (queue, is_key, queue_key, at) DO UPDATE SET starts = rates.starts + excluded.starts
