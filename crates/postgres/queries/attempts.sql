SELECT execution, path, attempt, failure, failed_at
FROM attempts WHERE execution = ANY($1::uuid[]) ORDER BY execution, path, attempt
