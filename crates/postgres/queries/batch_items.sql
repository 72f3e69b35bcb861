-- Returns the numbers of a batch's items by state. $1: the batch, $2: the key of its first item, $3: the lowest key of its
-- bundles. Each row has a kind, a status, the number of items, and the numbers of packed outcomes by final status.
SELECT 'closed', 0::smallint, b.item_count, 0::bigint, 0::bigint, 0::bigint
FROM batches AS b
WHERE b.key = $1::uuid AND b.item_count IS NOT NULL
UNION ALL
(SELECT 'bundled', e.status, sum(x.item_count)::bigint, coalesce(sum(p.completed), 0)::bigint,
        coalesce(sum(p.failed), 0)::bigint, coalesce(sum(p.cancelled), 0)::bigint
 FROM (SELECT x.key, x.item_count FROM bundles AS x WHERE x.key >= $3::uuid AND x.key < $1::uuid OFFSET 0) AS x
 CROSS JOIN LATERAL (SELECT e.status FROM executions AS e WHERE e.key = x.key OFFSET 0) AS e
 CROSS JOIN LATERAL (SELECT sum(p.completed) AS completed, sum(p.failed) AS failed, sum(p.cancelled) AS cancelled
                     FROM packs AS p WHERE p.bundle = x.key) AS p
 GROUP BY e.status
 ORDER BY e.status)
UNION ALL
SELECT 'retried', 0::smallint, count(*), 0::bigint, 0::bigint, 0::bigint
FROM bundles AS x WHERE x.key >= $2::uuid AND x.key < $3::uuid
UNION ALL
(SELECT 'promoted', e.status, count(*), 0::bigint, 0::bigint, 0::bigint
 FROM (SELECT e.status FROM executions AS e WHERE e.key >= $2::uuid AND e.key < $3::uuid OFFSET 0) AS e
 GROUP BY e.status
 ORDER BY e.status)
