-- The attributes of a row of the inbox. 1 id
SELECT a.key, a.value, a.type
FROM inbox, json_each(inbox.attributes) AS a
WHERE inbox.id = ?1
