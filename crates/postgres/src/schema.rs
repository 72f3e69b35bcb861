//! The schema: its migrations and grants, as scripts.

use std::sync::{LazyLock, OnceLock};

use refinery::{Migration, embed_migrations};

use crate::quoting::{quote_identifier, quote_literal, search_path};

embed_migrations!("migrations");

/// The table of applied migrations, in refinery's format.
pub(crate) const VERSION_TABLE: &str = "schema_version";

/// The store's tables.
pub(crate) const TABLES: &[&str] = &[
    "executions",
    "checkpoints",
    "attempts",
    "attributes",
    "chunks",
    "batches",
    "bundles",
    "packs",
    "ready",
    "deadlines",
    "assignments",
    "quarantine",
    "queues",
    "graphs",
    "depths",
    "inbox",
    "rates",
    "slots",
    "timers",
    "waits",
    "messages",
    "message_ids",
    "stream_entries",
    "requests",
    "workers",
    "lanes",
    "shard",
    "dead_letters",
];

/// The store's functions.
const FUNCTIONS: &[&str] = &["keep_outcomes", "keep_conflicts"];

/// The privileges that an engine needs on the store's tables.
pub(crate) const TABLE_PRIVILEGES: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];

/// A migration that tests have added, which makes this process behave like a later version.
static ADDED_MIGRATION: OnceLock<Migration> = OnceLock::new();

/// Adds a migration to those of this process, so that the process behaves like a later version of the program. Tests
/// call this before they open a store.
///
/// # Panics
///
/// If `name` is not the name of a migration, as in `V99__later`, or if a migration was added already.
pub fn add_migration(name: &str, sql: &str) {
    let migration = Migration::unapplied(name, sql);
    let migration =
        migration.unwrap_or_else(|error| panic!("{name:?} is not the name of a migration: {error}"));
    assert!(ADDED_MIGRATION.set(migration).is_ok(), "a migration was added already");
}

/// Returns all migrations, in order.
pub(crate) fn migrations() -> Vec<Migration> {
    let mut all = migrations::runner().get_migrations().clone();
    all.extend(ADDED_MIGRATION.get().cloned());
    all.sort_by_key(Migration::version);
    all
}

/// Returns the newest version of the schema that this program supports.
pub(crate) fn newest_version() -> i64 {
    static NEWEST: LazyLock<i64> =
        LazyLock::new(|| migrations().last().map_or(0, |migration| i64::from(migration.version())));
    *NEWEST
}

/// Returns the newest version of the schema that this program supports, in the type of the server's column.
pub(crate) fn newest_version_column() -> i32 {
    i32::try_from(newest_version()).unwrap_or(i32::MAX)
}

/// Whether the checksum in the database is that of this program's migration to `version`. False for tables that a build
/// between releases has created. True for versions that this program does not support.
pub(crate) fn is_known_build(version: i64, checksum: &str) -> bool {
    let mut migrations = migrations().into_iter();
    let known = migrations.find(|migration| i64::from(migration.version()) == version);
    known.is_none_or(|migration| migration.checksum().to_string() == checksum)
}

/// Advice for a schema whose tables another build has created.
pub(crate) const OTHER_BUILD_ADVICE: &str = "use another schema for this program (?schema=NAME in the URL), or drop the existing one with all its contents";

/// Returns the migrations above version `found`.
pub(crate) fn pending_migrations(found: Option<i64>) -> Vec<Migration> {
    let found = found.unwrap_or(0);
    migrations().into_iter().filter(|migration| i64::from(migration.version()) > found).collect()
}

/// The first version of the schema with the table `shard`, which names the oldest engine that may use the store.
pub(crate) const FIRST_WITH_SHARD: i64 = 4;

/// The first version of the schema that distinguishes clients from workers.
pub(crate) const FIRST_WITH_CLIENTS: i64 = 2;

/// The statement that limits how long a migration waits for a lock, because flushes have to wait behind the migration.
const SET_LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout TO '10s';\n";

/// Returns the statements that fence all registrations on a schema of version `found`. Afterwards no engine of an older
/// program can record anything, not even a client, a stopped process, or an engine that the migration has not found.
/// Executions that such an engine runs are taken over like the executions of a dead worker.
fn fence_script(found: i64) -> String {
    let mut sql = SET_LOCK_TIMEOUT.to_owned();
    if found >= FIRST_WITH_SHARD {
        sql.push_str("SELECT number FROM shard FOR UPDATE;\n");
    }
    sql.push_str(
        "SELECT worker_id FROM workers ORDER BY worker_id FOR UPDATE;\n\
         SELECT lane FROM lanes ORDER BY worker_id, lane FOR UPDATE;\n",
    );
    if found >= FIRST_WITH_CLIENTS {
        sql.push_str(
            "DELETE FROM lanes WHERE worker_id IN (SELECT worker_id FROM workers WHERE is_client);\n\
             DELETE FROM workers WHERE is_client;\n",
        );
    }
    sql.push_str("UPDATE lanes SET epoch = epoch + 1;\nUPDATE workers SET epoch = epoch + 1;\n\n");
    sql
}

/// Returns the script that applies `pending` to a schema of version `found`, in one transaction.
pub(crate) fn migration_script(
    schema: &str,
    has_schema: bool,
    found: Option<i64>,
    pending: &[Migration],
) -> String {
    let mut sql = String::new();
    if !has_schema {
        sql.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {};\n", quote_identifier(schema)));
    }
    sql.push_str(&format!(
        "SET LOCAL search_path TO {};\n\
         CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (\n    version    int4 PRIMARY KEY,\n    name       varchar(255),\n    \
         applied_on varchar(255),\n    checksum   varchar(255)\n);\n\n",
        search_path(schema)
    ));
    sql.push_str(&found.map(fence_script).unwrap_or_default());
    for migration in pending {
        let (version, name) = (migration.version(), migration.name());
        sql.push_str(migration.sql().unwrap_or_default().trim_end());
        sql.push_str(&format!(
            "\n\nINSERT INTO {VERSION_TABLE} (version, name, applied_on, checksum) VALUES ({version},{}, \
             to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '{}');\n",
            quote_literal(name),
            migration.checksum()
        ));
    }
    let newest = newest_version();
    sql.push_str(&format!(
        "UPDATE shard SET oldest_engine = greatest(oldest_engine, {newest});\n\
         COMMENT ON TABLE {VERSION_TABLE} IS 'One row per migration that was applied';\n\
         COMMENT ON COLUMN {VERSION_TABLE}.version IS 'Its number';\n\
         COMMENT ON COLUMN {VERSION_TABLE}.name IS 'Its name';\n\
         COMMENT ON COLUMN {VERSION_TABLE}.applied_on IS 'When';\n\
         COMMENT ON COLUMN {VERSION_TABLE}.checksum IS 'Hash of its text';\n"
    ));
    sql
}

/// Returns an error if privileges cannot be granted to a role of this name.
pub(crate) fn role_name_error(role: &str) -> Option<String> {
    if role == "public" {
        return Some(
            "role \"public\" means every role of the server: name the role that runs engines".into(),
        );
    }
    // the server would truncate a longer name, and grant to another role
    let is_name = (1..=63).contains(&role.len()) && !role.contains(char::is_control);
    (!is_name).then(|| {
        let shown = stepfast_core::text::quote(role);
        format!("{shown} cannot be the name of a role: use 1 to 63 bytes of printable characters")
    })
}

/// Returns the statements that allow `role` to run engines but not to change tables. The statements also cover tables
/// that later versions will create.
pub(crate) fn grant_script(schema: &str, role: &str) -> String {
    let (schema, role, privileges) =
        (quote_identifier(schema), quote_identifier(role), TABLE_PRIVILEGES.join(", "));
    let all =
        |names: &[&str]| names.iter().map(|name| format!("{schema}.{name}")).collect::<Vec<_>>().join(", ");
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role};\n\
         GRANT {privileges} ON {} TO {role};\n\
         GRANT SELECT ON {schema}.{VERSION_TABLE} TO {role};\n\
         GRANT EXECUTE ON FUNCTION {} TO {role};\n\
         ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT {privileges} ON TABLES TO {role};\n",
        all(TABLES),
        all(FUNCTIONS)
    )
}
