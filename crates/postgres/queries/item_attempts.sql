-- Loads the failed attempts of the items of bundles, as attempts.sql does. $1 and $2 as in promoted_items.sql.
SELECT a.execution, a.path, a.attempt, a.failure, a.failed_at
FROM unnest($1::uuid[], $2::uuid[]) AS u (first_item, last_item)
CROSS JOIN LATERAL (SELECT a.* FROM attempts AS a
                    WHERE a.execution >= u.first_item AND a.execution <= u.last_item OFFSET 0) AS a
ORDER BY a.execution, a.path, a.attempt
