-- Locks what the flush changes and the lane does not own, and the awaited descendants of what is cancelled,
-- in key order. $1: what is cancelled, $2: the others.
WITH RECURSIVE tree (key) AS (
    SELECT e.key
    FROM unnest($1::uuid[]) AS u (key)
    JOIN executions AS e ON e.key = u.key
    WHERE e.status < 4
  UNION
    SELECT c.key
    FROM tree AS t
    JOIN executions AS c ON c.parent = t.key
    WHERE NOT c.is_detached AND c.status < 4
)
SELECT e.key, e.status, e.is_paused, e.parent, e.is_detached
FROM (SELECT key FROM tree UNION SELECT unnest($2::uuid[])) AS k (key)
JOIN executions AS e ON e.key = k.key
ORDER BY k.key
FOR UPDATE OF e
