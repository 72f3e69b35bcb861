-- Sets the due time of a debounced execution, whose version of the code may have changed. 1 key, 2 due_at
UPDATE timers SET due_at = ?2, route = (
    SELECT workflow || char(1) || coalesce(app_version, '') || char(1) || coalesce(queue, 'default')
    FROM executions WHERE key = ?1
)
WHERE execution = ?1
