-- Adds all executions of fenced workers to the index of owners. $1: the workers, which can flush nothing more, $2 and $3:
-- a range of keys that covers their windows (see ownership.rs). Returns the workers that have an execution left, because
-- another transaction has locked it or has just added it to the index. Two takeovers may run this statement at once. A
-- row that the other takeover has just added has no started_by any more. So started_by is checked again when the row is
-- locked; otherwise the row's owner would become null.
WITH found AS MATERIALIZED (
    SELECT e.key, e.started_by
    FROM executions AS e
    WHERE e.key >= $2::uuid AND e.key < $3::uuid AND e.started_by = ANY($1::bigint[]) AND e.status = 2
  UNION
    SELECT e.key, e.started_by
    FROM claims AS c
    CROSS JOIN unnest(c.executions) AS u (key)
    CROSS JOIN LATERAL (SELECT e.key, e.started_by FROM executions AS e
                        WHERE e.key = u.key AND e.started_by = c.worker_id AND e.status = 2
                        OFFSET 0) AS e
    WHERE c.worker_id = ANY($1::bigint[])
), chosen AS MATERIALIZED (
    SELECT e.key
    FROM found AS f
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = f.key AND e.started_by = f.started_by AND e.status = 2
                        OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
), entered AS (
    UPDATE executions AS e SET owner = e.started_by, started_by = NULL FROM chosen AS c WHERE e.key = c.key
    RETURNING e.key
)
SELECT DISTINCT f.started_by FROM found AS f WHERE f.key NOT IN (SELECT key FROM entered)
