-- Deletes chunks of executions, except those of certain values. $1: executions, $2 and $3: the values to keep, each as
-- its execution and its number.
DELETE FROM chunks AS c
WHERE c.execution = ANY($1::uuid[])
  AND NOT EXISTS (SELECT FROM unnest($2::uuid[], $3::bigint[]) AS k (execution, value)
                  WHERE k.execution = c.execution AND k.value = c.value)
