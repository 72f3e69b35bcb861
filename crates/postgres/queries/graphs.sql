-- Lists graphs by name. $1: names, null for all.
SELECT name, declaration
FROM graphs
WHERE $1::text[] IS NULL OR name = ANY($1::text[])
ORDER BY name
