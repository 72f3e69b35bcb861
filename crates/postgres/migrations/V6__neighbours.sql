-- Which worker runs an execution: one column, without an index, because every end would change the index. The executions of
-- a worker are found by its assignments.
CREATE TABLE assignments (
    worker_id  bigint   NOT NULL,
    number     bigint   NOT NULL,
    lane       smallint NOT NULL,
    executions uuid[]   NOT NULL,
    CONSTRAINT assignments_key PRIMARY KEY (worker_id, lane, number)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- keys do not get shorter
ALTER TABLE assignments ALTER COLUMN executions SET STORAGE EXTERNAL;

COMMENT ON TABLE assignments IS 'One row per flush or claim that set executions running, until none of them runs';
COMMENT ON COLUMN assignments.worker_id IS 'The worker that runs the executions';
COMMENT ON COLUMN assignments.number IS 'Number of the flush or claim on its lane';
COMMENT ON COLUMN assignments.lane IS 'Number of the lane; 32767 for executions that were moved here from other rows';
COMMENT ON COLUMN assignments.executions IS 'Keys of the executions; those that do not run on the worker do not count';

-- The workers of older programs have ended; takeovers requeue what they still own.
INSERT INTO assignments (worker_id, number, lane, executions)
SELECT r.worker_id, 0, 0, array_agg(r.key ORDER BY r.key)
FROM (
    SELECT e.owner AS worker_id, e.key FROM executions AS e WHERE e.owner IS NOT NULL AND e.status = 2
    UNION
    SELECT w.worker_id, e.key
    FROM workers AS w
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key >= w.from_key AND e.key < w.to_key AND e.started_by = w.worker_id AND e.status = 2
                        OFFSET 0) AS e
    UNION
    SELECT c.worker_id, e.key
    FROM claims AS c
    CROSS JOIN unnest(c.executions) AS u (key)
    CROSS JOIN LATERAL (SELECT e.key FROM executions AS e
                        WHERE e.key = u.key AND e.started_by = c.worker_id AND e.status = 2
                        OFFSET 0) AS e
) AS r
GROUP BY r.worker_id;
UPDATE executions AS e
SET owner = e.started_by
WHERE e.key = ANY(ARRAY(SELECT unnest(a.executions) FROM assignments AS a)) AND e.status = 2 AND e.owner IS NULL;
-- An owner whose takeover was interrupted has no registration any more.
INSERT INTO workers (worker_id, registered_at, lease_expires_at, pid, is_client, from_key, to_key, host, engine, workflows)
OVERRIDING SYSTEM VALUE
SELECT a.worker_id, now(), now(), 0, false, a.executions[1], a.executions[1], 'unknown', 'unknown', '{}'
FROM assignments AS a
WHERE NOT EXISTS (SELECT FROM workers AS w WHERE w.worker_id = a.worker_id);

DROP TABLE claims;
DROP INDEX executions_owner;
ALTER TABLE executions DROP COLUMN started_by;
ALTER TABLE workers DROP COLUMN from_key, DROP COLUMN to_key;
COMMENT ON COLUMN executions.owner IS 'worker_id of the worker that runs it; null unless it is running';
UPDATE shard SET oldest_engine = 6;

-- The tables that claims and heartbeats search contain what they select by, in the order of the search: a worker reads no row
-- of another service.
-- A stream consists of the workflow, the version of the code (empty for any) and the queue, separated by a character that no
-- name contains.
ALTER TABLE timers ADD COLUMN stream text COLLATE "C";
UPDATE timers AS t
SET stream = (SELECT e.workflow || E'\x01' || coalesce(e.app_version, '') || E'\x01' || coalesce(e.queue, 'default')
              FROM executions AS e WHERE e.key = t.execution);
DELETE FROM timers WHERE stream IS NULL;
ALTER TABLE timers ALTER COLUMN stream SET NOT NULL;
ALTER TABLE timers ADD COLUMN is_scheduled boolean NOT NULL DEFAULT false;
UPDATE timers AS t SET is_scheduled = true FROM executions AS e WHERE e.key = t.execution AND e.status = 0;
DROP INDEX timers_due;
CREATE INDEX timers_due ON timers (stream, due_at);
CREATE INDEX timers_scheduled ON timers (stream) WHERE is_scheduled;
COMMENT ON COLUMN timers.is_scheduled IS 'True if the execution is scheduled, false if it sleeps or waits';
COMMENT ON COLUMN timers.stream IS 'Its workflow, version of the code (empty for any) and queue, separated by U+0001';

DROP INDEX ready_order;
DROP INDEX ready_woken;
ALTER TABLE ready RENAME COLUMN workflow TO stream;
ALTER TABLE ready ALTER COLUMN stream TYPE text COLLATE "C"
                  USING stream || E'\x01' || coalesce(app_version, '') || E'\x01' || queue;
ALTER TABLE ready DROP COLUMN app_version, DROP COLUMN queue;
CREATE INDEX ready_order ON ready (stream, queue_key, priority, seq);
CREATE INDEX ready_woken ON ready (stream, queue_key, priority, seq) WHERE is_woken;
COMMENT ON COLUMN ready.stream IS 'Its workflow, version of the code (empty for any) and queue, separated by U+0001';

UPDATE quarantine SET app_version = '' WHERE app_version IS NULL;
ALTER TABLE quarantine ALTER COLUMN workflow TYPE text COLLATE "C", ALTER COLUMN app_version TYPE text COLLATE "C",
                       ALTER COLUMN app_version SET DEFAULT '', ALTER COLUMN app_version SET NOT NULL;
DROP INDEX quarantine_due;
CREATE INDEX quarantine_due ON quarantine (workflow, app_version, due_at);
COMMENT ON COLUMN quarantine.app_version IS 'Version of the code that may run it; empty for any';

-- The executions of a queue that are scheduled are counted by their timers.
DROP INDEX executions_delayed;

ALTER TABLE requests ADD COLUMN worker_id bigint;
UPDATE requests AS r SET worker_id = (SELECT e.owner FROM executions AS e WHERE e.key = r.execution);
CREATE INDEX requests_worker ON requests (worker_id);
COMMENT ON COLUMN requests.worker_id IS 'The worker that runs the execution, at the time of the request';

-- The starts of a queue's keys by age, so that claims find those that no longer count.
CREATE INDEX rates_by_time ON rates (queue, is_key, at);

-- The lanes of registrations that have ended stay for a day.
ALTER TABLE lanes ADD COLUMN ended_at timestamptz;
CREATE INDEX lanes_ended ON lanes (ended_at) WHERE ended_at IS NOT NULL;
COMMENT ON COLUMN lanes.ended_at IS 'When the registration ended; null until then';
UPDATE lanes AS l SET ended_at = clock_timestamp()
WHERE NOT EXISTS (SELECT FROM workers AS w WHERE w.worker_id = l.worker_id);

-- Eight live workers observe the leases of all others.
CREATE INDEX workers_serving ON workers (worker_id) WHERE NOT is_client;

ALTER TABLE shard ADD COLUMN swept_at timestamptz NOT NULL DEFAULT 'epoch';
COMMENT ON COLUMN shard.swept_at IS 'When the last sweep began: a search for missed wakes and orphaned slots';

COMMENT ON COLUMN executions.is_alone IS 'True if it was claimed from the quarantine with nothing beside it';
COMMENT ON TABLE queues IS 'One row per queue that was declared or created';
COMMENT ON COLUMN queues.is_serial IS 'True if its limits need one claim after the other';

-- The outcomes of a lane's last flush, in case its reply is lost. A statement of a flush calls these functions only for Writes
-- that it does not simply apply. The functions see what other transactions have committed since the statement began. The
-- planner would parse functions in SQL whenever it plans a statement, to replace their calls.
ALTER TABLE lanes ADD COLUMN last_outcomes jsonb;
COMMENT ON COLUMN lanes.last_outcomes IS 'Reports on Writes of the last flush that were not simply applied; or null';

CREATE FUNCTION keep_outcomes(worker_id bigint, lane smallint, report jsonb) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    UPDATE lanes SET last_outcomes = coalesce(last_outcomes, '[]') || jsonb_build_array($3::jsonb)
    WHERE lanes.worker_id = $1::bigint AND lanes.lane = $2::smallint;
    RETURN $3::text;
END
$$;
COMMENT ON FUNCTION keep_outcomes IS 'Keeps a report with the last number of a lane, and returns it';

CREATE FUNCTION keep_conflicts(worker_id bigint, lane smallint, kind text, keys uuid[], ids text[], queues text[],
                               dedup_ids text[])
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
    SELECT keep_outcomes($1::bigint, $2::smallint, jsonb_build_object($3::text, jsonb_build_array(
               to_jsonb($4::uuid[]),
               coalesce(jsonb_agg(jsonb_build_array(
                   jsonb_build_array(e.key, e.workflow_id, e.workflow, e.fingerprint, e.parent,
                                     -- an unknown status is shown as queued
                                     CASE WHEN e.status BETWEEN 0 AND 6 THEN e.status ELSE 1 END),
                   e.queue, e.dedup_id)), '[]'))))
    FROM (SELECT unnest($4::uuid[])
          UNION
          SELECT x.key FROM executions AS x
          WHERE x.workflow_id = ANY($5::text[]) AND octet_length(x.workflow_id) <= 1024
          UNION
          SELECT x.key FROM executions AS x
          WHERE sha256(decode(replace(x.workflow_id, '\', '\\'), 'escape')) = ANY(ARRAY(
                    SELECT sha256(decode(replace(g.id, '\', '\\'), 'escape')) FROM unnest($5::text[]) AS g (id)
                    WHERE octet_length(g.id) > 1024))
            AND octet_length(x.workflow_id) > 1024
          UNION
          SELECT x.key
          FROM unnest($6::text[], $7::text[]) AS u (queue, dedup_id)
          CROSS JOIN LATERAL (SELECT x.key FROM executions AS x
                              WHERE x.queue = u.queue AND x.dedup_id = u.dedup_id AND x.dedup_id IS NOT NULL
                              OFFSET 0) AS x
         ) AS k (key)
    JOIN executions AS e ON e.key = k.key
    );
END
$$;
COMMENT ON FUNCTION keep_conflicts IS 'Keeps a report of Starts that inserted nothing and of their conflicts, and returns it';
