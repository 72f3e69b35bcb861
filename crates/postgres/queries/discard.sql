-- $1: executions; $2 and $3: the values to keep, with their execution.
DELETE FROM chunks AS c
USING unnest($1::uuid[]) AS u (execution)
WHERE c.execution = u.execution
  AND NOT EXISTS (SELECT FROM unnest($2::uuid[], $3::bigint[]) AS k (execution, value)
                  WHERE k.execution = c.execution AND k.value = c.value)
