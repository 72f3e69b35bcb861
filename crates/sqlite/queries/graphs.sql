-- All graphs, by name.
SELECT name, declaration FROM graphs ORDER BY name
