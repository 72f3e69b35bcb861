-- Copies the attributes of a row of the inbox. Of a duplicate name, the first value counts. 1 id
INSERT OR IGNORE INTO attributes (execution, name, value)
SELECT inbox.key, a.key, a.value
FROM inbox, json_each(inbox.attributes) AS a
WHERE inbox.id = ?1
