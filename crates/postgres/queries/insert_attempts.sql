-- Records failed attempts. $6 and $7: the worker and its lane. Returns one row with the columns of insert_checkpoints.sql.
WITH inserted AS (
    INSERT INTO attempts (failed_at, attempt, execution, path, failure)
    SELECT * FROM unnest($1::timestamptz[], $2::bigint[], $3::uuid[], $4::bytea[], $5::bytea[])
)
SELECT cardinality($3::uuid[])::bigint,
       (SELECT keep_outcomes($6::bigint, $7::smallint,
                             jsonb_build_object('cancel_requested', jsonb_agg(DISTINCT r.execution)))
        FROM requests AS r
        WHERE r.execution = ANY($3::uuid[]) AND r.kind = 1 AND (SELECT EXISTS (SELECT FROM requests AS others))
        HAVING count(*) > 0) AS report
