-- Moves kept messages to their executions, with their numbers, and copies the ids at their addresses. The ids also stay at the
-- address: a sender that has not found the execution may keep the same message again. If an address has no messages, the execution
-- has all ids of the address, and the statement does not read them. $1: addresses, $2: executions. Returns one row: the number of
-- messages and of new ids. The OFFSETs keep the plan: index lookups for each address.
WITH given AS MATERIALIZED (
    SELECT DISTINCT ON (u.address) u.address, u.execution
    FROM unnest($1::uuid[], $2::uuid[]) AS u (address, execution)
    ORDER BY u.address
), kept AS MATERIALIZED (
    SELECT m.place, g.address, g.execution
    FROM given AS g
    CROSS JOIN LATERAL (SELECT m.ctid AS place FROM messages AS m
                        WHERE m.execution = g.address ORDER BY m.topic, m.number FOR UPDATE OFFSET 0) AS m
), moved AS (
    UPDATE messages AS m SET execution = k.execution
    FROM kept AS k WHERE m.ctid = k.place
    RETURNING 1
), copied AS (
    INSERT INTO message_ids (execution, id)
    SELECT g.execution, i.id
    FROM (SELECT DISTINCT k.address, k.execution FROM kept AS k) AS g
    CROSS JOIN LATERAL (SELECT i.id FROM message_ids AS i WHERE i.execution = g.address ORDER BY i.id OFFSET 0) AS i
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM copied)
