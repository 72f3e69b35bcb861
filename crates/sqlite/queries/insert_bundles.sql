-- Inserts the row of a bundle. A batch statement repeats the row of values.
INSERT OR FAIL INTO bundles (key, item_count) VALUES
    (?, ?)
