-- Stores the declaration of a graph.
INSERT INTO graphs (name, declaration) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET declaration = excluded.declaration
