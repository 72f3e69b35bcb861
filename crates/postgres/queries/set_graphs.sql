-- Stores declarations of graphs. $1: names, $2: declarations. All workers store in the order of the names.
INSERT INTO graphs (name, declaration)
SELECT name, declaration
FROM unnest($1::text[], $2::text[]) AS given (name, declaration)
ORDER BY name COLLATE "C"
ON CONFLICT (name) DO UPDATE SET declaration = excluded.declaration
