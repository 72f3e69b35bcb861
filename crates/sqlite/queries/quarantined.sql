-- What is in quarantine, the longest first. 1 until, 2 version of the code, NULL for any
SELECT due_at, execution, workflow FROM quarantine
WHERE due_at <= ?1 AND (app_version = ?2 OR app_version IS NULL OR ?2 IS NULL)
ORDER BY due_at, execution
