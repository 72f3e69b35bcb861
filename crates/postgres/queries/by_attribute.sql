-- FROM clause of lists and counts by attribute: the executions that have the first attribute, in the order of its index.
FROM (SELECT a.execution
      FROM attributes AS a
      WHERE a.name = ($11::text[])[1] AND a.value = ($12::text[])[1]
        AND a.execution <= coalesce($10::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')) AS a
CROSS JOIN LATERAL (SELECT e.* FROM executions AS e WHERE e.key = a.execution OFFSET 0) AS e
