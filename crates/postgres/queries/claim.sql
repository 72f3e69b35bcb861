-- Claims executions. $1: the worker, $2: routes whose due executions without a queue are claimed, $3: the maximum number of
-- executions, $4: the maximum number of bytes, $5: the time now, null for the server's. $6 to $8: queue keys, each with the
-- maximum number of executions to take and their kind: true for woken ones, false for all others, null for both. $9 to $13:
-- the index ranges to scan, each with the position of its queue key in $6 (see claim/cursors.rs). $14 and $15: the routes to
-- scan, each with the position of its queue key in $6. $16 and $17: the queues, with the versions of the settings that the
-- claim has read. $18: the maximum number of due executions. $19: the maximum number of bundles to take from each queue key in
-- $6. Executions behind a bundle that is not taken are left too.
-- Executions that another transaction has locked are skipped: this statement does not wait for them. A transaction that
-- deletes a row of `ready`, or deletes or changes a timer, has locked the execution, so these rows need no lock. But after
-- this statement began, such a row may have been replaced. So the claim is valid only if it deleted all the rows that it
-- saw, and if the settings of the queues are those that the claim has read.
-- The OFFSETs keep the plan as it is written: in the order of the index, one lookup per row, and no more rows than
-- needed. Executions are locked, so they are found again by ctid. An execution that has not begun (seq above 0) has no
-- checkpoints, attempts or requests.
-- Where a queue key has executions of several workflows and versions, each of these routes yields its first rows, in
-- total about twice as many as needed. Rows behind the last row of a route that may have more are left to the next claim,
-- because rows of that route may come before them.
-- The key of a bundle has both variant bits. Bytes 10 to 13 are the index of its last item plus 2^31; those of an item are its
-- index. Only for bundles are the items looked up.
WITH due AS MATERIALIZED (
    SELECT d.key, d.place, d.bytes, d.timer, d.due_at
    FROM unnest($2::text[]) AS s (route)
    CROSS JOIN LATERAL (
        SELECT e.key, e.ctid AS place, octet_length(e.input) AS bytes, t.timer, t.due_at
        FROM (SELECT t.execution, t.ctid AS timer, t.due_at
              FROM timers AS t
              WHERE t.route = s.route AND t.due_at <= (SELECT coalesce($5::timestamptz, clock_timestamp()))
              ORDER BY t.due_at
              OFFSET 0) AS t
        JOIN executions AS e ON e.key = t.execution AND e.status IN (0, 3)
        LIMIT CASE WHEN cardinality($2::text[]) = 1 THEN $18::bigint
                   ELSE greatest(16, 2 * $18::bigint / greatest(1, cardinality($2::text[]))) END
        FOR UPDATE OF e SKIP LOCKED
    ) AS d
    ORDER BY d.due_at, d.key
    LIMIT $18::bigint
), scans AS MATERIALIZED (
    SELECT w.queue_key, w.is_woken, w.most, w.max_bundles, w.n, x.route,
           count(*) OVER (PARTITION BY w.n) > 1 AS is_merged,
           CASE WHEN count(*) OVER (PARTITION BY w.n) = 1 THEN w.most
                ELSE least(w.most, greatest(16, 2 * w.most / count(*) OVER (PARTITION BY w.n))) END AS per_route
    FROM (SELECT w.queue_key, least(w.most, $3::bigint) AS most, w.is_woken, w.max_bundles, w.n
          FROM unnest($6::text[], $7::bigint[], $8::boolean[], $19::bigint[])
               WITH ORDINALITY AS w (queue_key, most, is_woken, max_bundles, n)) AS w
    CROSS JOIN LATERAL (SELECT x.route FROM unnest($14::bigint[], $15::text[]) AS x (n, route) WHERE x.n = w.n) AS x
), found AS MATERIALIZED (
    SELECT w.n, w.most, w.max_bundles, w.is_merged, w.per_route, w.route, q.*,
           get_byte(uuid_send(q.key), 8) >= 192 AND get_byte(uuid_send(q.key), 10) >= 128 AS is_bundle
    FROM scans AS w
    CROSS JOIN LATERAL (
        SELECT e.key, e.ctid AS place, octet_length(e.input) AS bytes, r.ready, r.priority, r.seq
        FROM (SELECT r.*
              FROM unnest($9::bigint[], $10::integer[], $11::integer[], $12::bigint[], $13::bigint[])
                   AS g (n, priority, last_priority, seq, last_seq)
              CROSS JOIN LATERAL (
                  (SELECT r.execution, r.ctid AS ready, r.priority, r.seq
                   FROM ready AS r
                   WHERE r.route = w.route AND r.queue_key = w.queue_key
                     AND g.seq IS NULL AND r.priority >= g.priority AND r.priority <= g.last_priority
                     AND (w.is_woken IS NULL OR NOT r.is_woken)
                   ORDER BY r.priority, r.seq
                   OFFSET 0)
                UNION ALL
                  -- a comparison of pairs would not skip the rows that were claimed, but step over each
                  (SELECT r.execution, r.ctid AS ready, r.priority, r.seq
                   FROM ready AS r
                   WHERE r.route = w.route AND r.queue_key = w.queue_key
                     AND g.seq IS NOT NULL AND r.priority = g.priority AND r.seq >= g.seq AND r.seq <= g.last_seq
                     AND (w.is_woken IS NULL OR NOT r.is_woken)
                   ORDER BY r.priority, r.seq
                   OFFSET 0)
              ) AS r
              WHERE g.n = w.n AND w.is_woken IS NOT TRUE
            UNION ALL
              (SELECT r.execution, r.ctid AS ready, r.priority, r.seq
               FROM ready AS r
               WHERE w.is_woken AND r.route = w.route AND r.queue_key = w.queue_key AND r.is_woken
               ORDER BY r.priority, r.seq
               OFFSET 0)
              OFFSET 0) AS r
        JOIN executions AS e ON e.key = r.execution AND e.status = 1 AND NOT e.is_paused
        LIMIT w.per_route
        FOR UPDATE OF e SKIP LOCKED
    ) AS q
    -- no other limit: `cut` must see the first rows of all routes
    LIMIT (SELECT CASE WHEN count(*) >= $3::bigint THEN 0 END FROM due)
), cut AS MATERIALIZED (
    -- the last row up to which all routes of the queue key are known
    SELECT c.n, (min(ARRAY[c.priority, c.seq]) FILTER (WHERE c.found >= c.per_route)) AS position
    FROM (SELECT f.n, f.per_route, count(*) AS found, max(f.priority)::bigint AS priority,
                 (array_agg(f.seq ORDER BY f.priority DESC, f.seq DESC))[1] AS seq
          FROM found AS f
          WHERE f.is_merged
          GROUP BY f.n, f.route, f.per_route) AS c
    GROUP BY c.n
), queued AS MATERIALIZED (
    SELECT q.*
    FROM (SELECT f.*, row_number() OVER w AS nth, count(*) FILTER (WHERE f.is_bundle) OVER w AS bundles
          FROM found AS f
          LEFT JOIN cut AS c ON c.n = f.n
          WHERE c.position IS NULL OR ARRAY[f.priority, f.seq] <= c.position
          WINDOW w AS (PARTITION BY f.n ORDER BY f.priority, f.seq ROWS UNBOUNDED PRECEDING)) AS q
    WHERE q.nth <= q.most AND q.bundles <= q.max_bundles
    ORDER BY q.n, q.priority, q.seq
    LIMIT (SELECT $3::bigint - count(*) FROM due)
), candidates AS (
    SELECT key, place, bytes, timer, NULL::tid AS ready, NULL::bigint AS seq, true AS has_begun,
           row_number() OVER (ORDER BY due_at, key) AS n, false AS is_bundle
    FROM due
  UNION ALL
    SELECT key, place, bytes, NULL::tid, ready, seq, seq < 0,
           (SELECT count(*) FROM due) + row_number() OVER (ORDER BY n, priority, seq), is_bundle
    FROM queued
), sized AS (
    SELECT c.*, k.is_any, i.item_count, sum(c.bytes + k.bytes + coalesce(i.bytes, 0)) OVER (ORDER BY c.n) AS total
    FROM candidates AS c
    CROSS JOIN LATERAL (
        -- the begin of the last part, as in checkpoints_of_part.sql
        SELECT coalesce((
            SELECT p.path FROM checkpoints AS p
            WHERE c.has_begun AND p.execution = c.key
              AND p.path >= '\xfa800000'::bytea AND p.path < '\xfb'::bytea AND p.kind = 12
            ORDER BY p.path DESC LIMIT 1), ''::bytea) AS path
        OFFSET 0
    ) AS b
    CROSS JOIN LATERAL (
        -- CLAIMED_ROW_BYTES of the core for each row
        SELECT count(*) > 0 AS is_any, coalesce(sum(300 + octet_length(r.value)), 0) AS bytes
        FROM (SELECT p.outcome AS value FROM checkpoints AS p
              WHERE c.has_begun AND p.execution = c.key AND p.path >= b.path
              UNION ALL
              SELECT a.failure FROM attempts AS a
              WHERE c.has_begun AND a.execution = c.key AND a.path >= b.path) AS r (value)
    ) AS k
    LEFT JOIN LATERAL (
        -- CLAIMED_ITEM_BYTES of the core for each item, beside the packs and the rows of all items
        SELECT b.item_count, 1000 * b.item_count + p.bytes + r.bytes AS bytes
        FROM (SELECT b.item_count, b.last_item - b.item_count + 1 AS first_item, b.last_item, uuid_send(c.key) AS key
              FROM (SELECT b.item_count,
                           ('x' || encode(substring(uuid_send(c.key) FROM 11 FOR 4), 'hex'))::bit(32)::bigint - 2147483648
                               AS last_item
                    FROM bundles AS b
                    WHERE b.key = c.key OFFSET 0) AS b
              OFFSET 0) AS b
        CROSS JOIN LATERAL (SELECT encode(overlay(b.key PLACING substring(int8send(b.first_item) FROM 5) FROM 11), 'hex')::uuid
                                       AS first_key,
                                   encode(overlay(b.key PLACING substring(int8send(b.last_item) FROM 5) FROM 11), 'hex')::uuid
                                       AS last_key
                            OFFSET 0) AS u
        CROSS JOIN LATERAL (SELECT coalesce(sum(octet_length(p.outcomes)), 0) AS bytes
                            FROM packs AS p WHERE c.has_begun AND p.bundle = c.key) AS p
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(300 + octet_length(r.value)), 0) AS bytes
            FROM (SELECT p.outcome AS value FROM checkpoints AS p
                  WHERE c.has_begun AND p.execution >= u.first_key AND p.execution <= u.last_key
                  UNION ALL
                  SELECT a.failure FROM attempts AS a
                  WHERE c.has_begun AND a.execution >= u.first_key AND a.execution <= u.last_key) AS r (value)
        ) AS r
        WHERE c.is_bundle
        OFFSET 0
    ) AS i ON true
), chosen AS MATERIALIZED (
    SELECT s.key, s.place, s.timer, s.ready, s.seq, s.item_count, s.n,
           -- a request may cancel an item of a bundle that has not begun
           (s.has_begun OR s.is_bundle)
           AND (s.is_any OR (SELECT true FROM requests AS r WHERE r.execution = s.key LIMIT 1) IS NOT NULL) AS has_more
    FROM sized AS s
    WHERE s.n = 1 OR s.total <= $4::bigint
), taken AS (
    UPDATE executions AS e
    SET status = 2, owner = $1::bigint, is_alone = NULL,
        -- a bundle keeps the timeout, which is that of each of its items
        run_timeout_ms = CASE WHEN c.item_count IS NOT NULL THEN e.run_timeout_ms END,
        deadline_at = CASE WHEN e.run_timeout_ms IS NULL OR c.item_count IS NOT NULL THEN e.deadline_at
                           ELSE least(e.deadline_at, coalesce($5::timestamptz, clock_timestamp())
                                                     + least(greatest(e.run_timeout_ms, 0), 3162240000000)
                                                       * interval '1 millisecond') END
    FROM chosen AS c
    WHERE e.ctid = c.place
    RETURNING e.*, c.n, c.has_more, c.seq, c.item_count
), unqueued AS (
    DELETE FROM ready WHERE ctid = ANY(ARRAY(SELECT ready FROM chosen WHERE ready IS NOT NULL)) RETURNING 1
), asked AS (
    UPDATE requests SET worker_id = $1::bigint
    WHERE execution = ANY(ARRAY(SELECT key FROM chosen WHERE has_more))
), undated AS (
    DELETE FROM deadlines WHERE execution = ANY(ARRAY(SELECT key FROM taken WHERE deadline_at IS NOT NULL))
), unarmed AS (
    DELETE FROM timers WHERE ctid = ANY(ARRAY(SELECT timer FROM chosen WHERE timer IS NOT NULL)) RETURNING 1
), unwaited AS (
    DELETE FROM waits WHERE execution = ANY(ARRAY(SELECT key FROM chosen WHERE ready IS NULL)) RETURNING 1
)
SELECT key, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, input, outcome,
       owner, run_no, recoveries, created_at, ended_at, deadline_at, armed, NULL::timestamptz AS wake_at,
       strikes, app_version, queue, queue_key, priority, dedup_id, run_timeout_ms,
       has_more,
       (SELECT count(*) FROM found) > (SELECT count(*) FROM queued),
       (SELECT count(*) FROM unqueued) = (SELECT count(ready) FROM chosen)
       AND (SELECT count(*) FROM unarmed) = (SELECT count(timer) FROM chosen)
       AND NOT EXISTS (SELECT FROM unnest($16::text[], $17::bigint[]) AS u (name, version)
                       WHERE u.version IS DISTINCT FROM (SELECT q.version FROM queues AS q WHERE q.name = u.name)), seq, item_count,
       (SELECT count(*) FROM unqueued), (SELECT count(*) FROM unarmed), (SELECT count(*) FROM unwaited)
FROM taken
ORDER BY n
