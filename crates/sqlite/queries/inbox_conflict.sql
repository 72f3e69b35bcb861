-- The reason why a row of the inbox is no repetition of the execution that has its key or its workflow_id. 1 id
SELECT iif(
    e.key = i.key, 'its key is that of another execution',
    'its workflow_id is that of another execution, with another workflow or other arguments'
)
FROM inbox AS i
JOIN executions AS e ON e.key = i.key OR e.workflow_id = i.workflow_id
WHERE i.id = ?1
    AND (e.workflow <> i.workflow OR e.fingerprint <> i.fingerprint
         OR (e.key = i.key AND e.workflow_id IS NOT i.workflow_id))
LIMIT 1
