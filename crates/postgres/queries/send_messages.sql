-- Sends messages. $1: times, $2: receivers, $3: addresses at which the ids are recorded, too, null for none, $4: topics, $5: ids,
-- null for none, $6: values, $7: the worker, $8: its lane. Returns one row: the number of messages, the number of ids, and a kept
-- report of the messages that were not sent, null if all were. Each has its index and a code: the status of an ended receiver,
-- -1 for a receiver that does not exist, or -2 for a message that was sent before. An address, which begins with these bytes, is
-- a receiver that never ends. An id that another transaction is inserting is waited for; the order of the ids prevents deadlocks.
-- The OFFSET keeps the plan: one index lookup per message.
WITH given AS MATERIALIZED (
    SELECT u.n, u.sent_at, u.execution, u.address, u.topic, u.id, u.value,
           CASE WHEN u.execution >= 'ffff0000-0000-0000-0000-000000000000'::uuid THEN 0 ELSE e.status END AS status,
           u.id IS NOT NULL AND ((SELECT true FROM message_ids AS m
                                  WHERE m.execution = u.execution AND m.id = u.id) IS NOT NULL
                                 OR u.address IS NOT NULL AND (SELECT true FROM message_ids AS m
                                                               WHERE m.execution = u.address AND m.id = u.id) IS NOT NULL)
               AS was_sent
    FROM unnest($1::timestamptz[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::bytea[])
         WITH ORDINALITY AS u (sent_at, execution, address, topic, id, value, n)
    LEFT JOIN LATERAL (SELECT e.status FROM executions AS e WHERE e.key = u.execution OFFSET 0) AS e ON true
), named AS (
    INSERT INTO message_ids (execution, id)
    SELECT r.receiver, g.id FROM given AS g CROSS JOIN unnest(ARRAY[g.execution, g.address]) AS r (receiver)
    WHERE g.id IS NOT NULL AND NOT g.was_sent AND g.status < 4 AND r.receiver IS NOT NULL
    ORDER BY r.receiver, g.id
    ON CONFLICT DO NOTHING
    RETURNING execution, id
), sent AS MATERIALIZED (
    SELECT g.* FROM given AS g
    WHERE g.status < 4
      AND (g.id IS NULL OR (g.execution, g.id) IN (SELECT n.execution, n.id FROM named AS n)
                           AND (g.address IS NULL OR (g.address, g.id) IN (SELECT n.execution, n.id FROM named AS n)))
), inserted AS (
    INSERT INTO messages (sent_at, execution, topic, value)
    SELECT s.sent_at, s.execution, s.topic, s.value FROM sent AS s ORDER BY s.n
    RETURNING 1
), unsent AS (
    SELECT g.n - 1 AS index,
           CASE WHEN g.status IS NULL THEN -1 WHEN g.was_sent OR g.status < 4 THEN -2 ELSE g.status END AS code
    FROM given AS g
    WHERE g.n NOT IN (SELECT s.n FROM sent AS s)
)
SELECT (SELECT count(*) FROM inserted), (SELECT count(*) FROM named),
       CASE WHEN count(*) > 0
            THEN keep_outcomes($7::bigint, $8::smallint, jsonb_build_object('unsent',
                     jsonb_agg(jsonb_build_array(u.index, u.code) ORDER BY u.index))) END AS report
FROM unsent AS u
