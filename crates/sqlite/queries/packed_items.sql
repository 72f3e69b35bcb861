-- The numbers of packed outcomes of a batch's items, by the status of the bundle. 1 and 2 the range of the bundles
SELECT executions.status, sum(packs.completed), sum(packs.failed), sum(packs.cancelled)
FROM packs CROSS JOIN executions ON executions.key = packs.bundle
WHERE packs.bundle BETWEEN ?1 AND ?2
GROUP BY executions.status
