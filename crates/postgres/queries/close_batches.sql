-- Closes open batches, which this transaction has locked. $1: the batches, $2: their numbers of items, $3: for each batch the
-- lowest key of its bundles, $4: the worker, $5: its lane. Returns one row: the number of closed batches, and a kept report of
-- those that do not exist or have another number of items, null if there are none. The OFFSETs keep the plan as it is written;
-- locked rows are found again by ctid.
WITH counted AS MATERIALIZED (
    SELECT u.key, u.item_count, b.place, b.closed_with,
           coalesce(b.closed_with,
                    -- an open batch, or one that has ended
                    (SELECT (SELECT coalesce(sum(x.item_count), 0)::bigint FROM bundles AS x
                             WHERE x.key >= u.first_bundle AND x.key < u.key)
                     FROM executions AS e WHERE e.key = u.key)) AS known_items
    FROM unnest($1::uuid[], $2::bigint[], $3::uuid[]) AS u (key, item_count, first_bundle)
    LEFT JOIN LATERAL (SELECT b.ctid AS place, b.item_count AS closed_with FROM batches AS b
                       WHERE b.key = u.key OFFSET 0) AS b ON true
), closed AS (
    UPDATE batches AS b
    SET item_count = c.item_count
    FROM (SELECT c.place, c.item_count FROM counted AS c
          WHERE c.closed_with IS NULL AND c.item_count = c.known_items OFFSET 0) AS c
    WHERE b.ctid = c.place
    RETURNING b.key
), others AS (
    SELECT c.key FROM counted AS c WHERE c.item_count IS DISTINCT FROM c.known_items
)
SELECT (SELECT count(*) FROM closed),
       CASE WHEN count(*) > 0
            THEN keep_outcomes($4::bigint, $5::smallint, jsonb_build_object('not_found', jsonb_agg(o.key))) END AS report
FROM others AS o
