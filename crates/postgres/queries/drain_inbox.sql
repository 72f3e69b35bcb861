-- Starts executions from the rows that transactions of other programs have put into the inbox, in the order of arrival. A
-- row whose key, workflow_id or dedup_id exists is a duplicate; a full queue accepts the row. $1: the time now, null for
-- the server's, $2: the maximum number of rows, $3: only the row with this id, null for any. Rows that another worker
-- drains at the moment are skipped. A row that cannot become an execution becomes a dead letter. If the first valid row
-- of a key did not become an execution, later rows of the key go back to the end of the inbox. The next claim checks
-- these rows against the executions that exist then.
WITH picked AS MATERIALIZED (
    DELETE FROM inbox
    WHERE id = ANY(ARRAY(SELECT id FROM inbox WHERE id = $3::bigint OR $3::bigint IS NULL
                         ORDER BY id LIMIT $2::bigint FOR UPDATE SKIP LOCKED))
    RETURNING *
), clock AS MATERIALIZED (
    SELECT coalesce($1::timestamptz, clock_timestamp()) AS now,
           coalesce($1::timestamptz, clock_timestamp()) - interval '36600 days' AS first,
           coalesce($1::timestamptz, clock_timestamp()) + interval '36600 days' AS last,
           s.number
    FROM shard AS s
), letters AS MATERIALIZED (
    SELECT p.*,
           CASE
               WHEN (get_byte(uuid_send(p.key), 14) & 3) * 256 + get_byte(uuid_send(p.key), 15) <> c.number
               THEN 'its key names shard ' || (get_byte(uuid_send(p.key), 14) & 3) * 256 + get_byte(uuid_send(p.key), 15)
                    || ', and this store is shard ' || c.number
               WHEN NOT p.put_at BETWEEN c.first AND c.last THEN 'its put_at is not within a hundred years of now'
               WHEN NOT p.due_at BETWEEN c.first AND c.last THEN 'its due_at is not within a hundred years of now'
               WHEN NOT p.deadline_at BETWEEN c.first AND c.last THEN 'its deadline_at is not within a hundred years of now'
               WHEN NOT p.run_timeout_ms BETWEEN 0 AND 3162240000000
               THEN 'its run_timeout_ms is not between 0 and a hundred years'
               WHEN EXISTS (SELECT FROM jsonb_each(p.attributes) AS a (name, value)
                            WHERE jsonb_typeof(a.value) <> 'string' OR octet_length(a.name) NOT BETWEEN 1 AND 128
                               OR octet_length(a.value #>> '{}') NOT BETWEEN 1 AND 1024 OR strpos(a.name, '=') > 0
                               OR a.name || (a.value #>> '{}') ~ '[\u0001-\u001f\u007f]')
               THEN 'an attribute is not a name of 1 to 128 bytes, without ''='', with a text of 1 to 1024 bytes, both '
                    'printable'
               WHEN (SELECT count(*) FROM jsonb_object_keys(p.attributes)) > 64
               THEN 'it has more than 64 attributes'
               -- control characters separate the parts of a debounce key, which is stored as the dedup_id
               WHEN concat(p.workflow, p.workflow_id, p.app_version, p.queue, p.queue_key, p.dedup_id)
                    ~ '[\u0001-\u001f\u007f]'
               THEN 'a name or an id of it has a control character'
           END AS reason
    FROM picked AS p CROSS JOIN clock AS c
), judged AS MATERIALIZED (
    -- nth: the number of a valid row among the valid rows of its key; null for an invalid row
    SELECT l.*,
           CASE WHEN l.reason IS NULL
                THEN row_number() OVER (PARTITION BY l.key, l.reason IS NULL ORDER BY l.id) END AS nth
    FROM letters AS l
), started AS (
    INSERT INTO executions (created_at, deadline_at, fingerprint, status, key, workflow, workflow_id, input,
                            app_version, queue, queue_key, priority, dedup_id, run_timeout_ms)
    SELECT put_at, deadline_at, fingerprint,
           CASE WHEN due_at > (SELECT now FROM clock) THEN 0 ELSE 1 END,
           key, workflow, workflow_id, input, app_version, queue, queue_key, priority, dedup_id, run_timeout_ms
    FROM judged
    WHERE nth = 1
    ORDER BY queue, dedup_id, workflow_id, id
    ON CONFLICT DO NOTHING
    RETURNING key, status, created_at, deadline_at, workflow, workflow_id, fingerprint, app_version, queue, queue_key,
              priority
), dated AS (
    INSERT INTO deadlines (due_at, execution)
    SELECT deadline_at, key FROM started WHERE deadline_at IS NOT NULL
), found_by AS (
    INSERT INTO attributes (execution, name, value)
    SELECT j.key, a.name, a.value #>> '{}'
    FROM judged AS j
    CROSS JOIN LATERAL jsonb_each(j.attributes) AS a (name, value)
    WHERE j.nth = 1 AND (j.key IN (SELECT key FROM started)) IS TRUE
    RETURNING 1
), delayed AS (
    INSERT INTO timers (due_at, execution, route, is_scheduled)
    SELECT due_at, key, workflow || E'\x01' || coalesce(app_version, '') || E'\x01' || coalesce(queue, 'default'), true
    FROM judged
    WHERE nth = 1 AND (key IN (SELECT key FROM started WHERE status = 0)) IS TRUE
    RETURNING 1
), queued AS (
    INSERT INTO ready (execution, route, queue_key, priority)
    SELECT key, workflow || E'\x01' || coalesce(app_version, '') || E'\x01' || coalesce(queue, 'default'),
           coalesce(queue_key, ''), coalesce(priority, 0)
    FROM started
    WHERE status = 1
    ORDER BY created_at, key
    RETURNING 1
), deeper AS (
    -- with this bound, the next Start in the queue counts the queue's executions
    UPDATE depths SET bound = 9223372036854775807 WHERE queue = ANY(ARRAY(SELECT queue FROM picked))
), taken AS MATERIALIZED (
    -- A row whose key or workflow_id exists is a repetition, unless its workflow or its arguments differ.
    SELECT j.id, t.reason
    FROM judged AS j
    CROSS JOIN LATERAL (
        SELECT CASE WHEN e.key = j.key THEN 'its key is that of another execution'
                    ELSE 'its workflow_id is that of another execution, with another workflow or other arguments'
               END AS reason
        FROM (SELECT e.key, e.workflow, e.workflow_id, e.fingerprint FROM executions AS e WHERE e.key = j.key
            UNION ALL
              SELECT e.key, e.workflow, e.workflow_id, e.fingerprint FROM executions AS e
              WHERE e.workflow_id = j.workflow_id AND octet_length(e.workflow_id) <= 1024
            UNION ALL
              SELECT s.key, s.workflow, s.workflow_id, s.fingerprint FROM started AS s
              WHERE s.key = j.key OR s.workflow_id = j.workflow_id) AS e
        WHERE e.workflow <> j.workflow OR e.fingerprint <> j.fingerprint
           OR (e.key = j.key AND e.workflow_id IS DISTINCT FROM j.workflow_id)
        LIMIT 1
    ) AS t
    WHERE j.nth IS NOT NULL AND (j.nth > 1 OR j.key NOT IN (SELECT s.key FROM started AS s))
), put_back AS (
    -- the first row of the key was a duplicate by its workflow_id or its dedup_id; one of several copies is enough
    INSERT INTO inbox (put_at, due_at, deadline_at, fingerprint, run_timeout_ms, priority, key, workflow, workflow_id,
                       app_version, queue, queue_key, dedup_id, attributes, input)
    SELECT put_at, due_at, deadline_at, fingerprint, run_timeout_ms, priority, key, workflow, workflow_id,
           app_version, queue, queue_key, dedup_id, attributes, input
    FROM (SELECT DISTINCT ON (j.key, j.workflow, j.workflow_id, j.fingerprint, j.queue, j.dedup_id) j.*
          FROM judged AS j
          WHERE j.nth > 1 AND j.key NOT IN (SELECT key FROM started) AND j.id NOT IN (SELECT id FROM taken)
            AND (SELECT true FROM executions AS e WHERE e.key = j.key) IS NULL
          ORDER BY j.key, j.workflow, j.workflow_id, j.fingerprint, j.queue, j.dedup_id, j.id) AS j
    ORDER BY id
    RETURNING 1
), dead AS (
    INSERT INTO dead_letters (put_at, refused_at, key, reason, workflow, workflow_id, queue, letter, input)
    SELECT j.put_at, (SELECT now FROM clock), j.key, coalesce(j.reason, t.reason), j.workflow, j.workflow_id, j.queue,
           to_jsonb(j) - '{input,nth,reason}'::text[], j.input
    FROM judged AS j
    LEFT JOIN taken AS t ON t.id = j.id
    WHERE j.reason IS NOT NULL OR t.reason IS NOT NULL
    ORDER BY j.id
    RETURNING id, workflow, reason
)
SELECT (SELECT count(*) FROM picked) - (SELECT count(*) FROM put_back), (SELECT count(*) FROM started),
       (SELECT count(*) FROM queued), (SELECT count(*) FROM delayed), (SELECT count(*) FROM found_by),
       ARRAY(SELECT format('%s for workflow %s: %s', id, workflow, reason) FROM dead ORDER BY id)
