SELECT count(*)
FROM executions AS e
WHERE ($1::smallint[] IS NULL OR e.status = ANY($1::smallint[]))
  AND ($2::text IS NULL OR e.workflow = $2::text)
  AND ($3::boolean IS NULL OR e.is_paused = $3::boolean)
  AND ($4::uuid IS NULL OR e.parent = $4::uuid)
  AND ($5::text IS NULL OR starts_with(coalesce(e.workflow_id, e.key::text), $5::text))
  AND ($6::timestamptz IS NULL OR e.created_at >= $6::timestamptz)
  AND ($7::timestamptz IS NULL OR e.created_at < $7::timestamptz)
