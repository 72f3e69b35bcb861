-- Inserts a piece of a payload. May have many rows.
INSERT OR FAIL INTO payloads (id, bytes) VALUES
    (?, ?)
