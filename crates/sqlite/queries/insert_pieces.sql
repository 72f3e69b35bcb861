-- Inserts a piece of a payload. A batch statement repeats the row of values.
INSERT OR FAIL INTO payloads (id, bytes) VALUES
    (?, ?)
