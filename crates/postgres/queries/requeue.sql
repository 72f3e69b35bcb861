-- Requeues executions that a fenced worker runs, by some of its assignments, and deletes these. $1: the worker, $2: true if
-- it died, false if it closed its registration, $3: the time now, null for the server's, $4: the maximum number of
-- executions, $5 and $6: lane and number of the assignment after which to begin. An assignment stays if one of its executions
-- is left: another transaction has locked it, or the maximum is reached. Also returns the last assignment that was examined.
-- Strikes and delays are as in store/quarantine.rs of the core: an execution that was recovered three times in a row with
-- nothing new recorded goes to the quarantine. From then on, a recovery without progress is a strike only if the
-- execution was tried alone.
WITH listed AS MATERIALIZED (
    SELECT a.lane, a.number, a.executions, sum(cardinality(a.executions)) OVER (ORDER BY a.lane, a.number) AS total,
           row_number() OVER (ORDER BY a.lane, a.number) AS n
    FROM (SELECT a.lane, a.number, a.executions FROM assignments AS a
          WHERE a.worker_id = $1::bigint AND (a.lane, a.number) > ($5::smallint, $6::bigint)
          ORDER BY a.lane, a.number
          LIMIT 100
          FOR UPDATE SKIP LOCKED) AS a
), running AS MATERIALIZED (
    SELECT l.lane, l.number, e.key
    FROM listed AS l
    CROSS JOIN unnest(l.executions) AS u (key)
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = u.key AND e.owner = $1::bigint AND e.status = 2 OFFSET 0) AS e
    WHERE l.n = 1 OR l.total <= $4::bigint
), chosen AS MATERIALIZED (
    SELECT e.*
    FROM (SELECT DISTINCT r.key FROM running AS r ORDER BY r.key LIMIT $4::bigint) AS r
    CROSS JOIN LATERAL (SELECT e.key, e.workflow, e.app_version, e.queue, e.queue_key, e.priority, e.created_at,
                               coalesce(e.strikes, 0) AS strikes, e.progress, coalesce(e.is_alone, false) AS is_alone
                        FROM executions AS e
                        WHERE e.key = r.key AND e.owner = $1::bigint AND e.status = 2
                        OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
), remaining AS MATERIALIZED (
    SELECT r.lane, r.number FROM running AS r WHERE r.key NOT IN (SELECT c.key FROM chosen AS c)
), counted AS MATERIALIZED (
    -- a number that grows with each checkpoint and each attempt; only the last part is read, as in checkpoints_of_part.sql
    SELECT c.*,
           CASE WHEN $2::boolean
                THEN coalesce((SELECT max(p.order_no) FROM checkpoints AS p
                               WHERE p.execution = c.key AND p.path >= b.path), 0)::bigint * 65536
                     + least(65535, (SELECT count(*) FROM attempts AS a WHERE a.execution = c.key AND a.path >= b.path))
                ELSE c.progress END AS recorded
    FROM chosen AS c
    CROSS JOIN LATERAL (
        SELECT coalesce((
            SELECT p.path FROM checkpoints AS p
            WHERE $2::boolean AND p.execution = c.key
              AND p.path >= '\xfa800000'::bytea AND p.path < '\xfb'::bytea AND p.kind = 12
            ORDER BY p.path DESC LIMIT 1), ''::bytea) AS path
        OFFSET 0
    ) AS b
), judged AS MATERIALIZED (
    SELECT c.*,
           CASE WHEN NOT $2::boolean THEN c.strikes
                WHEN c.recorded > c.progress THEN 1
                WHEN c.strikes >= 3 AND NOT c.is_alone THEN c.strikes
                ELSE c.strikes + 1 END AS now_strikes
    FROM counted AS c
), moved AS (
    UPDATE executions AS e
    SET status = 1, owner = NULL, is_alone = NULL, recoveries = e.recoveries + $2::boolean::integer,
        strikes = nullif(j.now_strikes, 0), progress = j.recorded
    FROM judged AS j
    WHERE e.key = j.key
    RETURNING e.key, e.deadline_at
), dated AS (
    INSERT INTO deadlines (due_at, execution)
    SELECT deadline_at, key FROM moved WHERE deadline_at IS NOT NULL
    ON CONFLICT DO NOTHING
), queued AS (
    -- ahead of executions that have not begun, as in ready_resumed.sql
    INSERT INTO ready (execution, route, queue_key, priority, seq) OVERRIDING SYSTEM VALUE
    SELECT key, workflow || E'\x01' || coalesce(app_version, '') || E'\x01' || coalesce(queue, 'default'),
           coalesce(queue_key, ''), coalesce(priority, 0),
           (extract(epoch FROM created_at) * 1000000)::bigint - 4611686018427387904
    FROM judged
    WHERE NOT $2::boolean OR now_strikes < 3
    ORDER BY key
    ON CONFLICT DO NOTHING
), freed AS (
    DELETE FROM slots
    WHERE ctid = ANY(ARRAY(
        SELECT s.ctid
        FROM judged AS j
        CROSS JOIN LATERAL (SELECT s.ctid FROM slots AS s
                            WHERE s.queue = j.queue AND s.queue_key = coalesce(j.queue_key, '') AND s.execution = j.key
                            OFFSET 0) AS s))
), quarantined AS (
    INSERT INTO quarantine (due_at, execution, workflow, app_version)
    SELECT coalesce($3::timestamptz, clock_timestamp())
           + CASE WHEN now_strikes > 3 THEN least(2 ^ least(now_strikes - 4, 6), 60) ELSE 0 END * interval '1 second',
           key, workflow, coalesce(app_version, '')
    FROM judged
    WHERE $2::boolean AND now_strikes >= 3
    ORDER BY key
    ON CONFLICT DO NOTHING
), ended AS (
    DELETE FROM assignments AS a
    USING listed AS l
    WHERE a.worker_id = $1::bigint AND a.lane = l.lane AND a.number = l.number AND (l.n = 1 OR l.total <= $4::bigint)
      AND NOT EXISTS (SELECT FROM remaining AS r WHERE r.lane = l.lane AND r.number = l.number)
    RETURNING 1
)
SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM ended), l.lane, l.number
FROM (SELECT 1) AS one
LEFT JOIN (SELECT l.lane, l.number FROM listed AS l
           WHERE l.n = 1 OR l.total <= $4::bigint
           ORDER BY l.n DESC
           LIMIT 1) AS l ON true
