-- What an execution of the inbox is found by: of a name that is given twice, the first value. 1 id
INSERT OR IGNORE INTO attributes (execution, name, value)
SELECT inbox.key, a.key, a.value
FROM inbox, json_each(inbox.attributes) AS a
WHERE inbox.id = ?1 AND a.type = 'text' AND length(CAST(a.key AS BLOB)) BETWEEN 1 AND 128
    AND length(CAST(a.value AS BLOB)) BETWEEN 1 AND 1024
