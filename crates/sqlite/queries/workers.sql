-- All registrations.
SELECT
    worker_id, host, pid, engine, app_version, workflows, is_client, registered_at,
    queues
FROM workers ORDER BY worker_id
