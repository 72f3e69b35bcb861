-- What an execution of the inbox is found by: of a name that is given twice, the first value. 1 id
INSERT OR IGNORE INTO attributes (execution, name, value)
SELECT inbox.key, a.key, a.value
FROM inbox, json_each(inbox.attributes) AS a
WHERE inbox.id = ?1
