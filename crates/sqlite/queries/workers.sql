-- All registrations, with their numbers of running executions.
SELECT
    worker_id, host, pid, engine, app_version, workflows, is_client, registered_at,
    queues, (SELECT count(*) FROM executions WHERE owner = workers.worker_id)
FROM workers ORDER BY worker_id
