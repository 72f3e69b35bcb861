CREATE TABLE graphs (
    name        text COLLATE "C" NOT NULL,
    declaration text NOT NULL,
    CONSTRAINT graphs_key PRIMARY KEY (name)
);

COMMENT ON TABLE graphs IS 'One row per graph, as the program declares it that has opened an engine with the graph last';
COMMENT ON COLUMN graphs.name IS 'Name of the graph, which is that of its workflow';
COMMENT ON COLUMN graphs.declaration IS 'Its tasks, their dependencies and their rules, as JSON';
