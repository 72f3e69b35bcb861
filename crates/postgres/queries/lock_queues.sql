-- Locks the settings of queues until the end of the transaction, and stores the names of the locked ones for the
-- statements that follow. $1: queues. A queue whose settings another transaction changes, or waits to change, is skipped.
-- $2: queues without a depth limit; the statement divides by zero if one of them has a limit by now.
-- The lock is no lock on a row: locks of many transactions on one row would starve a change, and would cost the server a
-- multixact per flush. 256 locks stand for all queues of a schema, so that many queues do not fill the server's table of
-- locks. The statements that follow have later snapshots, so they see each change that was made before.
SELECT set_config('stepfast.locked_queues', coalesce(string_agg(u.queue, E'\n'), ''), true),
       1 / ((SELECT count(*) FROM depths AS d WHERE d.queue = ANY($2::text[])) = 0)::integer
FROM unnest($1::text[]) AS u (queue)
WHERE pg_try_advisory_xact_lock_shared(hashtext('stepfast queues ' || current_schema()), hashtext(u.queue) & 255)
