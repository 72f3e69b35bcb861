-- Ends the batches that complete_batches.sql finds. $4: the time now, null for the server's. Returns one row: the number of
-- batches that ended, their keys, and a report as in wake.sql.
), ended AS (
    UPDATE executions AS e
    SET status = 4, outcome = NULL, ended_at = coalesce($4::timestamptz, clock_timestamp()), armed = NULL, dedup_id = NULL
    FROM complete AS c
    WHERE e.key = c.key AND e.status = 3
    RETURNING e.key, e.deadline_at
), undated AS (
    DELETE FROM deadlines WHERE execution = ANY(ARRAY(SELECT key FROM ended WHERE deadline_at IS NOT NULL))
), forgotten AS (
    DELETE FROM batches WHERE key = ANY(ARRAY(SELECT key FROM ended))
)
SELECT count(*), coalesce(array_agg(e.key), '{}'),
       CASE WHEN count(*) < cardinality($1::uuid[])
            THEN jsonb_build_object('not_found', (
                SELECT jsonb_agg(u.key) FROM unnest($1::uuid[]) AS u (key)
                WHERE u.key NOT IN (SELECT key FROM ended)))::text END AS report
FROM ended AS e
