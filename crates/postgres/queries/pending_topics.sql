-- Counts the pending messages of an execution by topic. $1: the execution.
SELECT m.topic, count(*) FROM messages AS m WHERE m.execution = $1::uuid GROUP BY m.topic ORDER BY m.topic
