-- Deletes received messages. $1: their receivers, $2: topics, $3: numbers.
DELETE FROM messages
WHERE ctid = ANY(ARRAY(
    SELECT m.place
    FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS u (execution, topic, number)
    CROSS JOIN LATERAL (SELECT m.ctid AS place FROM messages AS m
                        WHERE m.execution = u.execution AND m.topic = u.topic AND m.number = u.number
                        OFFSET 0) AS m))
