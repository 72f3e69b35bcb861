-- Loads pending messages, the earliest first. $1: receivers, $2: topics, $3: the maximum number for each.
SELECT u.n - 1, m.number, m.value, m.sent_at
FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS u (execution, topic, n)
CROSS JOIN LATERAL (SELECT m.number, m.value, m.sent_at FROM messages AS m
                    WHERE m.execution = u.execution AND m.topic = u.topic
                    ORDER BY m.number LIMIT $3::bigint) AS m
ORDER BY u.n, m.number
