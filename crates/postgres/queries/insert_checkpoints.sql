-- Records checkpoints. Arrays as in start_running.sql. $11 and $12: the worker and its lane. Returns one row: the number of
-- inserted rows, and a kept report of those of their executions that have a pending cancel, null if none has. Usually
-- `requests` is empty: then nothing else is checked.
WITH inserted AS (
    INSERT INTO checkpoints (recorded_at, took_ms, order_no, fingerprint, run_no, kind, execution, path, step_name,
                             outcome)
    SELECT unnest($1::timestamptz[]), unnest($2::bigint[]), unnest($3::bigint[]), unnest($4::bigint[]),
           unnest($5::integer[]), unnest($6::smallint[]), unnest($7::uuid[]), unnest($8::bytea[]),
           unnest($9::text[]), unnest($10::bytea[])
)
SELECT cardinality($7::uuid[])::bigint,
       (SELECT keep_outcomes($11::bigint, $12::smallint,
                             jsonb_build_object('cancel_requested', jsonb_agg(DISTINCT r.execution)))
        FROM requests AS r
        WHERE r.execution = ANY($7::uuid[]) AND r.kind = 1 AND (SELECT EXISTS (SELECT FROM requests AS others))
        HAVING count(*) > 0) AS report
