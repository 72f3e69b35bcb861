//! A later version of the program: its schema has one more migration than the one of this build.

use std::env;

/// Makes a process one of the later version.
pub const LATER: &str = "STEPFAST_CHAOS_LATER";

/// The name under which processes of the version before connect to Postgres.
pub const BEFORE: &str = "before";

/// The version of the later schema, which no migration of this build has.
pub const VERSION: i64 = 90;

const ON_SQLITE: &str = "
    ALTER TABLE executions ADD COLUMN tenant TEXT;
    CREATE TABLE tenants (name TEXT PRIMARY KEY) STRICT;
";

/// Every change that a process of the version before makes to a table is written down.
const ON_POSTGRES: &str = "
    ALTER TABLE executions ADD COLUMN tenant text;
    CREATE TABLE tenants (name text PRIMARY KEY);
    CREATE TABLE strangers (what text);
    CREATE FUNCTION note_stranger() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('application_name') LIKE 'before %' THEN
            INSERT INTO strangers VALUES (tg_op || ' ' || tg_table_name);
        END IF;
        RETURN NULL;
    END $$;
    DO $$
    DECLARE name text;
    BEGIN
        FOR name IN SELECT tablename FROM pg_tables
                    WHERE schemaname = current_schema AND tablename NOT IN ('schema_version', 'strangers') LOOP
            EXECUTE format('CREATE TRIGGER strangers AFTER INSERT OR UPDATE OR DELETE ON %I '
                           'FOR EACH ROW EXECUTE FUNCTION note_stranger()', name);
        END LOOP;
    END $$;
";

/// Makes this process one of the later version if it was started to be one. Comes before any store is opened.
pub fn become_if_asked() {
    if is_asked() {
        become_later();
    }
}

/// True in a process that was started to be one of the later version.
pub fn is_asked() -> bool {
    env::var(LATER).is_ok()
}

/// Makes this process one of the later version.
pub fn become_later() {
    let name = format!("V{VERSION}__later");
    stepfast_sqlite::add_migration(&name, ON_SQLITE);
    stepfast_postgres::add_migration(&name, ON_POSTGRES);
}
