-- Claims executions. $1: the worker, $2: its workflows, $3: the maximum number of executions, $4: the maximum number of
-- bytes, $5: the time now, null for the server's, $6: the worker's version of the code, null for any, $7: whether to take
-- due executions that have no queue. $8 to $11: queues and queue keys, each with the maximum number of executions to take
-- and their kind: true for woken ones, false for all others, null for both. $12: the number of the claim. $13 to $17: the
-- index ranges to scan, each with the position of its queue in $8 (see claim/cursors.rs).
-- Executions and timers that another transaction has locked are skipped: this statement does not wait for them. A
-- transaction that deletes a row of `ready` has locked the row's execution, so rows of `ready` need no lock. But after
-- this statement began, a row may have been deleted, and another one inserted for the same execution. So the claim is
-- valid only if it deleted all the rows that it saw.
-- The OFFSETs keep the plan as it is written: in the order of the index, one lookup per row, and no more rows than
-- needed. Executions are locked, so they are found again by ctid. An execution that has not begun (seq above 0) has no
-- checkpoints, attempts or requests.
WITH due AS MATERIALIZED (
    SELECT e.key, e.place, e.bytes, t.due_at
    FROM (SELECT t.execution, t.due_at
          FROM timers AS t
          WHERE t.due_at <= (SELECT coalesce($5::timestamptz, clock_timestamp())) AND $7::boolean
          ORDER BY t.due_at
          OFFSET 0 FOR UPDATE SKIP LOCKED) AS t
    CROSS JOIN LATERAL (SELECT e.key, e.ctid AS place, octet_length(e.input) AS bytes
                        FROM executions AS e
                        WHERE e.key = t.execution AND e.status IN (0, 3) AND e.workflow = ANY($2::text[])
                          AND e.queue IS NULL
                          AND (e.app_version = $6::text OR e.app_version IS NULL OR $6::text IS NULL)
                        OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
    LIMIT $3::bigint
), queued AS MATERIALIZED (
    SELECT q.key, q.place, q.bytes, q.ready, q.seq, q.priority, w.n
    FROM unnest($8::text[], $9::text[], $10::bigint[], $11::boolean[]) WITH ORDINALITY
         AS w (queue, queue_key, most, is_woken, n)
    CROSS JOIN LATERAL (
        SELECT e.key, e.place, e.bytes, r.ready, r.priority, r.seq
        FROM unnest($13::bigint[], $14::integer[], $15::integer[], $16::bigint[], $17::bigint[])
             AS g (n, priority, last_priority, seq, last_seq)
        CROSS JOIN LATERAL (
            (SELECT r.execution, r.ctid AS ready, r.priority, r.seq
             FROM ready AS r
             WHERE r.queue = w.queue AND r.queue_key = w.queue_key AND r.workflow = ANY($2::text[])
               AND g.seq IS NULL AND r.priority >= g.priority AND r.priority <= g.last_priority
               AND (w.is_woken IS NULL OR NOT r.is_woken)
               AND (r.app_version = $6::text OR r.app_version IS NULL OR $6::text IS NULL)
             ORDER BY r.priority, r.seq
             OFFSET 0)
          UNION ALL
            -- a comparison of pairs would not skip the rows that were claimed, but step over each
            (SELECT r.execution, r.ctid AS ready, r.priority, r.seq
             FROM ready AS r
             WHERE r.queue = w.queue AND r.queue_key = w.queue_key AND r.workflow = ANY($2::text[])
               AND g.seq IS NOT NULL AND r.priority = g.priority AND r.seq >= g.seq AND r.seq <= g.last_seq
               AND (w.is_woken IS NULL OR NOT r.is_woken)
               AND (r.app_version = $6::text OR r.app_version IS NULL OR $6::text IS NULL)
             ORDER BY r.priority, r.seq
             OFFSET 0)
        ) AS r
        CROSS JOIN LATERAL (SELECT e.key, e.ctid AS place, octet_length(e.input) AS bytes
                            FROM executions AS e
                            WHERE e.key = r.execution AND e.status = 1 AND NOT e.is_paused
                            OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
        WHERE g.n = w.n
        LIMIT w.most
    ) AS q
    WHERE w.is_woken IS NOT TRUE
    LIMIT (SELECT $3::bigint - count(*) FROM due)
), woken AS MATERIALIZED (
    SELECT q.key, q.place, q.bytes, q.ready, q.seq, q.priority, w.n
    FROM unnest($8::text[], $9::text[], $10::bigint[], $11::boolean[]) WITH ORDINALITY
         AS w (queue, queue_key, most, is_woken, n)
    CROSS JOIN LATERAL (
        SELECT e.key, e.place, e.bytes, r.ready, r.priority, r.seq
        FROM (SELECT r.execution, r.ctid AS ready, r.priority, r.seq
              FROM ready AS r
              WHERE r.queue = w.queue AND r.queue_key = w.queue_key AND r.is_woken AND r.workflow = ANY($2::text[])
                AND (r.app_version = $6::text OR r.app_version IS NULL OR $6::text IS NULL)
              ORDER BY r.priority, r.seq
              OFFSET 0) AS r
        CROSS JOIN LATERAL (SELECT e.key, e.ctid AS place, octet_length(e.input) AS bytes
                            FROM executions AS e
                            WHERE e.key = r.execution AND e.status = 1 AND NOT e.is_paused
                            OFFSET 0 FOR UPDATE SKIP LOCKED) AS e
        LIMIT w.most
    ) AS q
    WHERE w.is_woken
    LIMIT (SELECT $3::bigint - count(*) FROM due) - (SELECT count(*) FROM queued)
), candidates AS (
    SELECT key, place, bytes, NULL::tid AS ready, NULL::bigint AS seq, true AS has_begun,
           row_number() OVER (ORDER BY due_at, key) AS n
    FROM due
  UNION ALL
    SELECT key, place, bytes, ready, seq, seq < 0,
           (SELECT count(*) FROM due) + row_number() OVER (ORDER BY n, priority, seq)
    FROM (SELECT * FROM queued UNION ALL SELECT * FROM woken) AS q
), sized AS (
    SELECT c.*, k.is_any, sum(c.bytes + k.bytes) OVER (ORDER BY c.n) AS total
    FROM candidates AS c
    CROSS JOIN LATERAL (
        SELECT count(*) > 0 AS is_any, coalesce(sum(octet_length(p.outcome)), 0) AS bytes
        FROM checkpoints AS p
        WHERE c.has_begun AND p.execution = c.key
    ) AS k
), chosen AS MATERIALIZED (
    SELECT s.key, s.place, s.ready, s.seq, s.n,
           s.has_begun
           AND (s.is_any OR (SELECT true FROM attempts AS a WHERE a.execution = s.key LIMIT 1) IS NOT NULL
                         OR (SELECT true FROM requests AS r WHERE r.execution = s.key LIMIT 1) IS NOT NULL) AS has_more
    FROM sized AS s
    WHERE s.n = 1 OR s.total <= $4::bigint
), taken AS (
    UPDATE executions AS e
    SET status = 2, started_by = $1::bigint, is_alone = NULL, run_timeout_ms = NULL,
        deadline_at = CASE WHEN e.run_timeout_ms IS NULL THEN e.deadline_at
                           ELSE least(e.deadline_at, coalesce($5::timestamptz, clock_timestamp())
                                                     + least(greatest(e.run_timeout_ms, 0), 3162240000000)
                                                       * interval '1 millisecond') END
    FROM chosen AS c
    WHERE e.ctid = c.place
    RETURNING e.*, c.n, c.has_more, c.seq
), noted AS (
    INSERT INTO claims (worker_id, number, executions)
    SELECT $1::bigint, $12::bigint, array_agg(key ORDER BY key) FROM chosen HAVING count(*) > 0
    -- a claim may send this statement twice
    ON CONFLICT (worker_id, number) DO UPDATE SET executions = claims.executions || excluded.executions
), unqueued AS (
    DELETE FROM ready WHERE ctid = ANY(ARRAY(SELECT ready FROM chosen WHERE ready IS NOT NULL)) RETURNING 1
), undated AS (
    DELETE FROM deadlines WHERE execution = ANY(ARRAY(SELECT key FROM taken WHERE deadline_at IS NOT NULL))
), unarmed AS (
    DELETE FROM timers WHERE execution = ANY(ARRAY(SELECT key FROM chosen WHERE ready IS NULL)) RETURNING 1
), unwaited AS (
    DELETE FROM waits WHERE execution = ANY(ARRAY(SELECT key FROM chosen WHERE ready IS NULL)) RETURNING 1
)
SELECT key, root, parent, is_detached, workflow_id, workflow, fingerprint, status, is_paused, input, outcome,
       started_by, run_no, recoveries, created_at, ended_at, deadline_at, armed, NULL::timestamptz AS wake_at,
       strikes, app_version, queue, queue_key, priority, dedup_id, run_timeout_ms,
       has_more, (SELECT count(*) FROM unqueued) = (SELECT count(ready) FROM chosen), seq,
       (SELECT count(*) FROM unqueued), (SELECT count(*) FROM unarmed), (SELECT count(*) FROM unwaited)
FROM taken
ORDER BY n
