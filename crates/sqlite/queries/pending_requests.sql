-- Pending requests for executions that a worker runs. 1 worker_id
SELECT requests.execution, requests.kind, requests.n
FROM requests CROSS JOIN executions ON executions.key = requests.execution
WHERE requests.worker_id = ?1 AND executions.owner = ?1 AND executions.status = 2
ORDER BY requests.execution, requests.n
