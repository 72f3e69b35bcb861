-- Locks executions that other transactions may change too, and the awaited descendants of executions to cancel, in key
-- order. $1: executions to cancel, $2: other executions to lock, $3: executions to wake. A Wake locks only a row that is
-- `waiting`, so it never waits for a lock on a parent that runs. A parent that is being suspended at the moment is not
-- locked: it looks for ended children itself after its suspension. Its status may change before the lock is granted, so
-- wake.sql checks the status again.
-- The OFFSETs keep the plan as it is written: one index lookup per row, in the order of the keys.
WITH RECURSIVE tree (key) AS (
    SELECT e.key
    FROM unnest($1::uuid[]) AS u (key)
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e WHERE e.key = u.key AND e.status < 4 OFFSET 0) AS e
  UNION
    SELECT c.key
    FROM tree AS t
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.parent = t.key AND NOT e.is_detached AND e.status < 4 OFFSET 0) AS c
)
SELECT e.key, e.status, e.is_paused, e.parent, e.is_detached, e.deadline_at
FROM (SELECT key FROM tree
      UNION
      SELECT unnest($2::uuid[])
      UNION
      SELECT w.key
      FROM unnest($3::uuid[]) AS w (key)
      CROSS JOIN LATERAL (SELECT FROM executions AS e WHERE e.key = w.key AND e.status = 3 OFFSET 0) AS e
      ORDER BY 1 OFFSET 0) AS k (key)
CROSS JOIN LATERAL (SELECT e.key, e.status, e.is_paused, e.parent, e.is_detached, e.deadline_at
                    FROM executions AS e WHERE e.key = k.key OFFSET 0 FOR UPDATE) AS e
