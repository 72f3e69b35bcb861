-- Starts bundles that fit into their batches, which this transaction has locked. $1 to $24: arrays as in start.sql, in the
-- order of the flush. $25: the number of items of each bundle, $26: the index of its last item, $27: the key that the bundle
-- before it has, or the nil key for the first bundle of a batch. The bundles form chains, in which each one follows the one
-- before. $28: the number of each bundle's chain, $29 and $30: the batch of each chain, and the lowest key of its bundles.
-- A chain fits from the bundle on that follows the last one in the table. If several chains of a batch do, the first one of
-- the flush fits. Returns one row as in start.sql.
WITH chains AS MATERIALIZED (
    -- into a batch that has ended, or does not exist, no bundle fits
    SELECT c.n::integer AS n, coalesce(b.item_count, 0) AS item_count,
           coalesce(b.last_bundle, '00000000-0000-0000-0000-000000000000') AS last_bundle
    FROM unnest($29::uuid[], $30::uuid[]) WITH ORDINALITY AS c (batch, first_bundle, n)
    LEFT JOIN LATERAL (SELECT coalesce(b.item_count, 9223372036854775807) AS item_count,
                              (SELECT x.key FROM bundles AS x WHERE x.key >= c.first_bundle AND x.key < c.batch
                               ORDER BY x.key DESC LIMIT 1) AS last_bundle
                       FROM batches AS b
                       WHERE b.key = c.batch
                       OFFSET 0) AS b ON true
), fitting AS (
    SELECT DISTINCT ON (s.batch) s.chain
    FROM (SELECT s.chain, s.predecessor, s.n, ($29::uuid[])[s.chain] AS batch
          FROM unnest($28::integer[], $27::uuid[]) WITH ORDINALITY AS s (chain, predecessor, n)) AS s
    WHERE s.predecessor = (ARRAY(SELECT c.last_bundle FROM chains AS c ORDER BY c.n))[s.chain]
    ORDER BY s.batch, s.n
), started AS (
    INSERT INTO executions (created_at, ended_at, deadline_at, owner, fingerprint, status, is_paused,
                            is_detached, key, root, parent, workflow, workflow_id, input, outcome, armed, app_version,
                            queue, queue_key, priority, dedup_id, run_timeout_ms)
    SELECT u.created_at, u.ended_at, u.deadline_at, u.owner, u.fingerprint, u.status, u.is_paused, u.is_detached, u.key,
           u.root, u.parent, u.workflow, u.workflow_id, u.input, u.outcome, u.armed, u.app_version, u.queue, u.queue_key,
           u.priority, u.dedup_id, u.run_timeout_ms
    FROM (SELECT unnest($1::timestamptz[]) AS created_at, unnest($2::timestamptz[]) AS ended_at,
                 unnest($3::timestamptz[]) AS deadline_at, unnest($4::bigint[]) AS owner,
                 unnest($5::bigint[]) AS fingerprint, unnest($6::smallint[]) AS status, unnest($7::boolean[]) AS is_paused,
                 unnest($8::boolean[]) AS is_detached, unnest($9::uuid[]) AS key, unnest($10::uuid[]) AS root,
                 unnest($11::uuid[]) AS parent, unnest($12::text[]) AS workflow, unnest($13::text[]) AS workflow_id,
                 unnest($14::bytea[]) AS input, unnest($15::bytea[]) AS outcome, unnest($16::bytea[]) AS armed,
                 unnest($17::text[]) AS app_version, unnest($18::text[]) AS queue, unnest($19::text[]) AS queue_key,
                 unnest($20::integer[]) AS priority, unnest($21::text[]) AS dedup_id,
                 unnest($22::bigint[]) AS run_timeout_ms, unnest($26::bigint[]) AS last_item,
                 unnest($28::integer[]) AS chain) AS u
    WHERE u.key > (ARRAY(SELECT c.last_bundle FROM chains AS c ORDER BY c.n))[u.chain]
      AND u.last_item < (ARRAY(SELECT CASE WHEN c.n IN (SELECT f.chain FROM fitting AS f) THEN c.item_count ELSE 0 END
                               FROM chains AS c ORDER BY c.n))[u.chain]
    ON CONFLICT DO NOTHING
    RETURNING key, status, deadline_at
), bundled AS (
    INSERT INTO bundles (key, item_count)
    SELECT u.key, u.item_count
    FROM (SELECT unnest($9::uuid[]) AS key, unnest($25::bigint[]) AS item_count) AS u
    -- not a join, which would search the started ones for each bundle
    WHERE (u.key IN (SELECT s.key FROM started AS s)) IS TRUE
), dated AS (
    INSERT INTO deadlines (due_at, execution)
    SELECT deadline_at, key FROM started WHERE deadline_at IS NOT NULL AND status IN (0, 1, 3)
    ON CONFLICT DO NOTHING
)
SELECT count(*),
       CASE WHEN count(*) < cardinality($9::uuid[]) THEN (
           SELECT keep_conflicts($23::bigint, $24::smallint, 'not_inserted', array_agg(u.key), array_agg(u.id),
                                 array_agg(u.queue), array_agg(u.dedup_id))
           FROM unnest($9::uuid[], $13::text[], $18::text[], $21::text[]) AS u (key, id, queue, dedup_id)
           WHERE u.key NOT IN (SELECT key FROM started)) END AS report
FROM started
