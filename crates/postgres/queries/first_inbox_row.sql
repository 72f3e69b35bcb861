-- Returns the id of the first row of the inbox.
SELECT id FROM inbox ORDER BY id LIMIT 1
