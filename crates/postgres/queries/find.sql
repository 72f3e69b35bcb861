-- Finds executions by the value of an attribute, up to a number for each value. $1: name, $2: positions of the values, $3:
-- values, $4: this number
SELECT u.position, a.execution
FROM unnest($2::bigint[], $3::text[]) AS u (position, value)
CROSS JOIN LATERAL (SELECT x.execution
                    FROM attributes AS x
                    WHERE x.name = $1::text AND x.value = u.value
                    ORDER BY x.execution DESC
                    LIMIT $4::bigint) AS a
ORDER BY u.position, a.execution DESC
