-- What runs of a queue gets slots where it has none. $1: the queue, whose row is locked. What is not in the index of
-- owners is found as in owned.sql.
INSERT INTO slots (worker_id, execution, queue, queue_key)
SELECT e.worker, e.key, $1::text, coalesce(e.queue_key, '')
FROM (SELECT e.owner AS worker, e.key, e.queue_key
      FROM executions AS e
      WHERE e.owner IS NOT NULL AND e.status = 2 AND e.queue = $1::text
      UNION ALL
      SELECT e.started_by, e.key, e.queue_key
      FROM workers AS w
      CROSS JOIN LATERAL (SELECT e.started_by, e.key, e.queue_key FROM executions AS e
                          WHERE e.key >= w.from_key AND e.key < w.to_key AND e.started_by = w.worker_id
                            AND e.status = 2 AND e.queue = $1::text
                          OFFSET 0) AS e
      UNION ALL
      SELECT e.started_by, e.key, e.queue_key
      FROM claims AS c
      CROSS JOIN unnest(c.executions) AS u (key)
      CROSS JOIN LATERAL (SELECT e.started_by, e.key, e.queue_key FROM executions AS e
                          WHERE e.key = u.key AND e.started_by = c.worker_id AND e.status = 2 AND e.queue = $1::text
                          OFFSET 0) AS e) AS e
ON CONFLICT DO NOTHING
