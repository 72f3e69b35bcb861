-- Requeues the running executions of owners without a registration. $1: the owners, $2: true if they died, false if they
-- closed their registration, $3: the time now, null for the server's.
-- Strikes and delays are as in store/quarantine.rs of the core: an execution that was recovered three times in a row with
-- nothing new recorded goes to the quarantine. From then on, a recovery without progress is a strike only if the
-- execution was tried alone.
WITH chosen AS MATERIALIZED (
    SELECT key, workflow, app_version, queue, queue_key, priority, created_at, coalesce(strikes, 0) AS strikes, progress,
           coalesce(is_alone, false) AS is_alone
    FROM executions
    WHERE owner = ANY($1::bigint[]) AND status = 2
    ORDER BY key
    LIMIT 5000
    FOR UPDATE SKIP LOCKED
), counted AS MATERIALIZED (
    SELECT c.*,
           CASE WHEN $2::boolean
                THEN (SELECT count(*) FROM checkpoints AS p WHERE p.execution = c.key)
                     + (SELECT count(*) FROM attempts AS a WHERE a.execution = c.key)
                ELSE c.progress END AS recorded
    FROM chosen AS c
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
    INSERT INTO ready (execution, workflow, app_version, queue, queue_key, priority, seq) OVERRIDING SYSTEM VALUE
    SELECT key, workflow, app_version, coalesce(queue, 'default'), coalesce(queue_key, ''), coalesce(priority, 0),
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
           key, workflow, app_version
    FROM judged
    WHERE $2::boolean AND now_strikes >= 3
    ORDER BY key
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM moved
