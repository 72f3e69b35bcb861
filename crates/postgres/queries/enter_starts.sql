-- Starts that count for rates, and those that count no more are forgotten. $1: queues, $2: whether it is about a key,
-- $3: the keys, $4: up to which time to forget, $5: when they were, $6: how many.
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
