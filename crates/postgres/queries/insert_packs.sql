-- Records outcomes of items. Arrays as in start_running.sql.
INSERT INTO packs (number, completed, failed, cancelled, bundle, outcomes)
SELECT unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::bigint[]), unnest($4::bigint[]), unnest($5::uuid[]),
       unnest($6::bytea[])
