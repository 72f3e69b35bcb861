INSERT INTO waits (execution, kind, subject, name)
SELECT u.key, u.kind, u.subject, u.name
FROM unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[]) AS u (key, kind, subject, name)
CROSS JOIN LATERAL (SELECT FROM executions AS e
                    WHERE e.key = u.key AND e.xmin = pg_current_xact_id()::xid AND e.status = 3 OFFSET 0) AS e
ON CONFLICT DO NOTHING
