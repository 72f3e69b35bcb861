-- WHERE clause of lists and counts; null applies no condition. $1: statuses, $2: workflow, $3: whether parked, $4:
-- parent, $5: prefix of the workflow_id, $6 and $7: times between which the execution was created, $8: version of the
-- code, $9: queue, $10: the key before which executions are listed, $11 and $12: names and values of attributes. The key of a
-- bundle has both variant bits, and a number in bytes 10 to 13 that is between those of the items and that of the batch.
WHERE ($1::smallint[] IS NULL OR e.status = ANY($1::smallint[]))
  AND ($2::text IS NULL OR e.workflow = $2::text)
  AND ($3::boolean IS NULL OR e.is_paused = $3::boolean)
  AND ($4::uuid IS NULL OR e.parent = $4::uuid)
  AND ($5::text IS NULL OR starts_with(coalesce(e.workflow_id, e.key::text), $5::text))
  AND ($6::timestamptz IS NULL OR e.created_at >= $6::timestamptz)
  AND ($7::timestamptz IS NULL OR e.created_at < $7::timestamptz)
  AND ($8::text IS NULL OR e.app_version = $8::text)
  AND ($9::text IS NULL OR coalesce(e.queue, 'default') = $9::text)
  AND ($10::uuid IS NULL OR e.key < $10::uuid) AND e.key <= coalesce($10::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND cardinality($11::text[])
      = (SELECT count(*)
         FROM unnest($11::text[], $12::text[]) AS u (name, value)
         CROSS JOIN LATERAL (SELECT FROM attributes AS x
                             WHERE x.execution = e.key AND x.name = u.name AND x.value = u.value OFFSET 0) AS x)
  AND NOT (get_byte(uuid_send(e.key), 8) >= 192 AND get_byte(uuid_send(e.key), 10) >= 128
           AND substring(uuid_send(e.key) FROM 11 FOR 4) <> '\xffffffff'::bytea)
