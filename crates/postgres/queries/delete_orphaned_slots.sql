-- Deletes slots whose execution does not run, as an older version or an operator may leave them. No claim takes an
-- execution that is locked here. The slot of an execution that another transaction has locked is left to the next sweep.
DELETE FROM slots
WHERE ctid = ANY(ARRAY(
    SELECT s.ctid
    FROM slots AS s
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = s.execution AND e.status <> 2
                        OFFSET 0 FOR SHARE SKIP LOCKED) AS e
  UNION ALL
    SELECT s.ctid
    FROM slots AS s
    WHERE (SELECT true FROM executions AS e WHERE e.key = s.execution) IS NULL))
