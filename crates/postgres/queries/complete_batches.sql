-- FROM clause: batches of which nothing is left to run. They are closed, their bundles contain all their items, and no bundle
-- and no item with a row of its own is unfinished. $1: the batches, in key order, $2: for each the key of its first item, $3:
-- the lowest key of its bundles. While a batch runs, a look at its last bundle is enough; the CASE puts the sum last.
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS u (key, first_item, first_bundle)
CROSS JOIN LATERAL (
    SELECT b.key
    FROM batches AS b
    WHERE b.key = u.key
      AND CASE WHEN b.item_count IS NULL THEN false
               WHEN (SELECT true FROM executions AS e WHERE e.key >= u.first_bundle AND e.key < u.key AND e.status < 4
                     ORDER BY e.key DESC LIMIT 1) THEN false
               WHEN (SELECT true FROM executions AS e WHERE e.key >= u.first_item AND e.key < u.first_bundle AND e.status < 4
                     ORDER BY e.key DESC LIMIT 1) THEN false
               ELSE b.item_count = (SELECT coalesce(sum(x.item_count), 0) FROM bundles AS x
                                    WHERE x.key >= u.first_bundle AND x.key < u.key) END
    OFFSET 0) AS b
