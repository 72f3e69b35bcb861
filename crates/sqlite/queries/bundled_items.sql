-- The bundles of a batch by status, with the number of their items. 1 and 2 the range of the bundles
SELECT executions.status, sum(bundles.item_count)
FROM bundles CROSS JOIN executions ON executions.key = bundles.key
WHERE bundles.key BETWEEN ?1 AND ?2
GROUP BY executions.status
