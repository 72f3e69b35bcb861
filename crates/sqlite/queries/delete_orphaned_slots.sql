-- Deletes slots whose execution does not run: older versions or operators may have left them.
DELETE FROM slots
WHERE NOT EXISTS (SELECT 1 FROM executions WHERE executions.key = slots.execution AND executions.status = 2)
