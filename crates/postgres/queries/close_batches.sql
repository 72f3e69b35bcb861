-- Closes open batches, which this transaction has locked. $1: the batches, $2: their numbers of items, $3: for each batch the
-- lowest key of its bundles, $4: the worker, $5: its lane. Returns one row: the number of closed batches, and a kept report of
-- those that do not exist or have another number of items, null if there are none. The OFFSET keeps the plan as it is written;
-- locked rows are found again by ctid.
WITH closed AS (
    UPDATE batches AS b
    SET item_count = u.item_count
    FROM (SELECT u.item_count, o.place
          FROM unnest($1::uuid[], $2::bigint[]) AS u (key, item_count)
          CROSS JOIN LATERAL (SELECT o.ctid AS place FROM batches AS o
                              WHERE o.key = u.key AND o.item_count IS NULL OFFSET 0) AS o) AS u
    WHERE b.ctid = u.place
    RETURNING b.key
), others AS (
    SELECT u.key
    FROM unnest($1::uuid[], $2::bigint[], $3::uuid[]) AS u (key, item_count, first_bundle)
    WHERE u.key NOT IN (SELECT key FROM closed)
      AND u.item_count IS DISTINCT FROM coalesce(
              (SELECT b.item_count FROM batches AS b WHERE b.key = u.key),
              -- a batch that has ended
              (SELECT (SELECT coalesce(sum(x.item_count), 0)::bigint FROM bundles AS x
                       WHERE x.key >= u.first_bundle AND x.key < u.key)
               FROM executions AS e WHERE e.key = u.key))
)
SELECT (SELECT count(*) FROM closed),
       CASE WHEN count(*) > 0
            THEN keep_outcomes($4::bigint, $5::smallint, jsonb_build_object('not_found', jsonb_agg(o.key))) END AS report
FROM others AS o
