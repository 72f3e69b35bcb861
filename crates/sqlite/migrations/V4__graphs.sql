CREATE TABLE graphs (
    -- One row per graph, as the program declares it that has opened an engine with the graph last.
    name TEXT NOT NULL PRIMARY KEY, -- name of the graph, which is that of its workflow
    declaration TEXT NOT NULL -- its tasks, their dependencies and their rules, as JSON
) STRICT, WITHOUT ROWID;
