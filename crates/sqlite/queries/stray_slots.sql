-- Slots whose execution does not run, as an older version or an operator has left them.
DELETE FROM slots
WHERE NOT EXISTS (SELECT 1 FROM executions WHERE executions.key = slots.execution AND executions.status = 2)
