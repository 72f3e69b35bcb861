-- A batch, its bundles and its promoted items are rows of executions; their keys differ in bytes 10 to 13 only. The other
-- items of a batch have no rows: their checkpoints, attempts and chunks have the keys of the items.
CREATE TABLE batches (
    -- One row per unfinished batch.
    key BLOB NOT NULL PRIMARY KEY, -- key of the batch
    item_count INTEGER -- number of its items; NULL while it is open
) STRICT, WITHOUT ROWID;

CREATE TABLE bundles (
    -- One row per bundle. Its key contains the index of its last item.
    key BLOB NOT NULL PRIMARY KEY, -- key of the bundle
    item_count INTEGER NOT NULL -- number of its items
) STRICT, WITHOUT ROWID;

CREATE TABLE packs (
    -- One row per recorded group of outcomes of a bundle's items. Append-only.
    bundle BLOB NOT NULL, -- key of the bundle
    number INTEGER NOT NULL, -- index of the first item in the pack
    completed INTEGER NOT NULL, -- number of its items that completed
    failed INTEGER NOT NULL, -- number of its items that failed
    cancelled INTEGER NOT NULL, -- number of its items that were cancelled
    outcomes BLOB, -- the encoded outcomes of its items
    PRIMARY KEY (bundle, number)
) STRICT, WITHOUT ROWID;
