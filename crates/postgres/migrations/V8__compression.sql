-- lz4 compresses values of 2 KB and more about ten times as fast as pglz. Servers before 14 do not have it, and other servers may
-- be built without it; there the columns keep the method of the server. Values that are stored already stay as they are.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        EXECUTE 'ALTER TABLE executions ALTER COLUMN input SET COMPRESSION lz4, ALTER COLUMN outcome SET COMPRESSION lz4';
        EXECUTE 'ALTER TABLE checkpoints ALTER COLUMN outcome SET COMPRESSION lz4';
        EXECUTE 'ALTER TABLE attempts ALTER COLUMN failure SET COMPRESSION lz4';
        EXECUTE 'ALTER TABLE chunks ALTER COLUMN bytes SET COMPRESSION lz4';
        EXECUTE 'ALTER TABLE packs ALTER COLUMN outcomes SET COMPRESSION lz4';
        EXECUTE 'ALTER TABLE inbox ALTER COLUMN input SET COMPRESSION lz4';
        EXECUTE 'ALTER TABLE dead_letters ALTER COLUMN input SET COMPRESSION lz4';
    END IF;
END
$$;
