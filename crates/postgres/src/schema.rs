//! The schema as text: what brings it up to date, and what lets a role use it.

use std::sync::{LazyLock, OnceLock};

use refinery::{Migration, embed_migrations};

use crate::quoting::{literal, quoted, search_path};

embed_migrations!("migrations");

/// The table that keeps account of migrations, in refinery's form.
pub(crate) const VERSIONS: &str = "schema_version";

/// The tables that the store works on.
pub(crate) const TABLES: &[&str] = &[
    "executions",
    "checkpoints",
    "attempts",
    "attributes",
    "chunks",
    "ready",
    "deadlines",
    "claims",
    "quarantine",
    "queues",
    "depths",
    "inbox",
    "rates",
    "slots",
    "timers",
    "waits",
    "requests",
    "workers",
    "lanes",
    "shard",
    "dead_letters",
];

/// What the store does in them.
pub(crate) const RIGHTS: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];

/// The migration that makes this process one of a later version.
static LATER: OnceLock<Migration> = OnceLock::new();

/// Adds a migration to those of this process, which becomes one of a later version of the program: for tests, before any
/// store is opened.
///
/// # Panics
///
/// If the name is none of a migration (`V99__later`), or if there is such a migration already.
pub fn add_migration(name: &str, sql: &str) {
    let later = Migration::unapplied(name, sql);
    let later = later.unwrap_or_else(|error| panic!("{name:?} is no migration: {error}"));
    assert!(LATER.set(later).is_ok(), "there is such a migration already");
}

/// All migrations, in their order.
pub(crate) fn migrations() -> Vec<Migration> {
    let mut all = migrations::runner().get_migrations().clone();
    all.extend(LATER.get().cloned());
    all.sort_by_key(Migration::version);
    all
}

/// The newest schema that this program knows.
pub(crate) fn newest() -> i64 {
    static NEWEST: LazyLock<i64> =
        LazyLock::new(|| migrations().last().map_or(0, |migration| i64::from(migration.version())));
    *NEWEST
}

/// Returns the newest version of the schema that this program knows, in the type of the server's column.
pub(crate) fn known() -> i32 {
    i32::try_from(newest()).unwrap_or(i32::MAX)
}

/// False if the tables of `version` were made by a text that this program does not have: by a build between releases.
pub(crate) fn is_ours(version: i64, checksum: &str) -> bool {
    let mut migrations = migrations().into_iter();
    let known = migrations.find(|migration| i64::from(migration.version()) == version);
    known.is_none_or(|migration| migration.checksum().to_string() == checksum)
}

/// What to do about such tables.
pub(crate) const NOT_OURS: &str = "give this program a schema of its own (?schema=NAME in the URL), or drop that one with all that is in it";

/// The migrations above version `found`.
pub(crate) fn pending(found: Option<i64>) -> Vec<Migration> {
    let found = found.unwrap_or(0);
    migrations().into_iter().filter(|migration| i64::from(migration.version()) > found).collect()
}

/// The first version of the schema that has the table `shard`, which names the oldest engine that may use the store.
pub(crate) const FIRST_WITH_SHARD: i64 = 4;

/// The first version of the schema that tells clients from workers.
pub(crate) const FIRST_WITH_CLIENTS: i64 = 2;

/// Limits the time for which a migration waits for a lock: flushes of the same table wait behind it.
const LOCK_WITHIN: &str = "SET LOCAL lock_timeout TO '10s';\n";

/// Returns the statements that fence all registrations on a schema of version `found`. No engine of an older program records
/// anything after them, whether its process is stopped, is a client, or was not seen. Executions that such an engine runs are
/// taken over like those of a lost worker.
fn fencing(found: i64) -> String {
    let mut sql = LOCK_WITHIN.to_owned();
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

/// What applies `pending` to a schema of version `found` in one transaction.
pub(crate) fn applying(schema: &str, is_there: bool, found: Option<i64>, pending: &[Migration]) -> String {
    let mut sql = String::new();
    if !is_there {
        sql.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {};\n", quoted(schema)));
    }
    sql.push_str(&format!(
        "SET LOCAL search_path TO {};\n\
         CREATE TABLE IF NOT EXISTS {VERSIONS} (\n    version    int4 PRIMARY KEY,\n    name       varchar(255),\n    \
         applied_on varchar(255),\n    checksum   varchar(255)\n);\n\n",
        search_path(schema)
    ));
    sql.push_str(&found.map(fencing).unwrap_or_default());
    for migration in pending {
        let (version, name) = (migration.version(), migration.name());
        sql.push_str(migration.sql().unwrap_or_default().trim_end());
        sql.push_str(&format!(
            "\n\nINSERT INTO {VERSIONS} (version, name, applied_on, checksum) VALUES ({version},{}, \
             to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '{}');\n",
            literal(name),
            migration.checksum()
        ));
    }
    let newest = newest();
    sql.push_str(&format!(
        "UPDATE shard SET oldest_engine = greatest(oldest_engine, {newest});\n\
         COMMENT ON TABLE {VERSIONS} IS 'One row per migration that was applied';\n\
         COMMENT ON COLUMN {VERSIONS}.version IS 'Its number';\n\
         COMMENT ON COLUMN {VERSIONS}.name IS 'Its name';\n\
         COMMENT ON COLUMN {VERSIONS}.applied_on IS 'When';\n\
         COMMENT ON COLUMN {VERSIONS}.checksum IS 'Hash of its text';\n"
    ));
    sql
}

/// Returns why nothing can be granted to a role of this name.
pub(crate) fn refused_role(role: &str) -> Option<String> {
    if role == "public" {
        return Some("role \"public\" is every role of the server: name the one that runs engines".into());
    }
    // the server would cut a longer one, and grant to another
    let is_name = (1..=63).contains(&role.len()) && !role.contains(char::is_control);
    (!is_name).then(|| {
        let shown = stepfast_core::text::quote(role);
        format!("role {shown} cannot be: a name has 1 to 63 bytes of printable characters")
    })
}

/// What lets `role` run engines, and change nothing but rows; also in tables that later versions bring.
pub(crate) fn granting(schema: &str, role: &str) -> String {
    let (schema, role, rights) = (quoted(schema), quoted(role), RIGHTS.join(", "));
    let tables: Vec<_> = TABLES.iter().map(|table| format!("{schema}.{table}")).collect();
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role};\n\
         GRANT {rights} ON {} TO {role};\n\
         GRANT SELECT ON {schema}.{VERSIONS} TO {role};\n\
         ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT {rights} ON TABLES TO {role};\n",
        tables.join(", ")
    )
}
