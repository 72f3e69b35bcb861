-- Locks unfinished batches in key order, so that their bundles and their ends cannot change. $1: the batches, in key order.
SELECT b.key
FROM unnest($1::uuid[]) AS u (key)
CROSS JOIN LATERAL (SELECT b.key FROM batches AS b WHERE b.key = u.key OFFSET 0 FOR UPDATE) AS b
