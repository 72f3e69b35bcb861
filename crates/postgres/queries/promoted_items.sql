-- Returns the items of bundles that have a row of their own. $1 and $2: for each bundle the keys of its first and last item.
SELECT e.key
FROM unnest($1::uuid[], $2::uuid[]) AS u (first_item, last_item)
CROSS JOIN LATERAL (SELECT e.key FROM executions AS e WHERE e.key >= u.first_item AND e.key <= u.last_item OFFSET 0) AS e
ORDER BY e.key
