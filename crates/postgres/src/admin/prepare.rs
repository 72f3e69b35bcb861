//! Preparations: indexes that a migration of a large database reads, built while older engines still run.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};
use xxhash_rust::xxh3::xxh3_64;

use crate::admin::schema_state::read_schema_state;
use crate::conn::connector::{Connector, Purpose};
use crate::conn::pooler::query_first_row;
use crate::quoting::{quote_identifier, quote_literal};

/// An index that the migration to `version` reads.
struct Preparation {
    version: i64,
    index: &'static str,
    /// Whether the index remains after the migration. Otherwise the migration drops the index.
    is_kept: bool,
    /// The only statement of the build, because a transaction cannot build an index concurrently. The statement works
    /// on the schema of any older version.
    sql: &'static str,
}

const PREPARATIONS: &[Preparation] = &[
    Preparation {
        version: 4,
        index: "executions_with_deadline",
        is_kept: false,
        sql: include_str!("../../migrations/V4__hardening.before.sql"),
    },
    Preparation {
        version: 10,
        index: "checkpoints_events",
        is_kept: true,
        sql: include_str!("../../migrations/V10__events.before.sql"),
    },
];

/// Statements that remove the time limits of a session, because a concurrent build waits for all transactions that
/// began before it.
const NO_TIMEOUTS: &str = "SET statement_timeout TO 0;\nSET lock_timeout TO 0;\n";

/// The pause between attempts to take the lock of [`prepare`].
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Builds the indexes that the migrations of a schema of version `found` read. Older engines keep working. Returns the
/// version afterwards, because another process may have migrated in the meantime.
///
/// After an error or a crash the next call continues. A valid index is kept, and an invalid one is built again.
/// `lock_client` is a separate connection that holds a lock, so that only one process prepares at a time.
pub(crate) async fn prepare(
    connector: &Connector,
    client: &Client,
    lock_client: &Client,
    found: i64,
) -> Result<i64, Error> {
    let schema = connector.options().schema.as_str();
    acquire_lock(connector, lock_client).await?;
    if !connector.is_pooled() {
        // through a proxy, the settings would remain in a server session that other clients use
        client
            .batch_execute(&format!("{}{NO_TIMEOUTS}", connector.session_settings(Purpose::Migration)))
            .await?;
    }
    let mut now = found;
    for preparation in preparations_after(found) {
        loop {
            now = read_schema_state(client, schema).await?.version().unwrap_or(found);
            let statements = preparation.statements(client, schema, now).await?;
            if statements.is_empty() {
                break;
            }
            let index = preparation.index;
            tracing::info!(
                schema,
                index,
                "building an index before the migration; the build waits for older transactions, and engines keep running"
            );
            for statement in statements {
                match client.batch_execute(&statement).await {
                    Err(error) if is_build_conflict(&error) => break,
                    result => result?,
                }
            }
        }
    }
    // if the lock was lost in the meantime, nothing has to be undone
    let _ = lock_client.batch_execute("ROLLBACK").await;
    Ok(now)
}

/// Whether a statement conflicts with a build whose process is gone, but whose server session continues. Such a
/// conflict is a deadlock, or a simultaneous change of the index's row in the catalog.
fn is_build_conflict(error: &Error) -> bool {
    let Some(error) = error.as_db_error() else { return false };
    let code = error.code();
    *code == SqlState::T_R_DEADLOCK_DETECTED
        || *code == SqlState::INTERNAL_ERROR && error.message().starts_with("tuple concurrently ")
}

/// Begins a transaction with a lock that only one process at a time can hold. The lock is polled. A session that waits
/// for a lock has a snapshot, and the index build of the other process would wait for this session. An idle transaction
/// has no snapshot.
async fn acquire_lock(connector: &Connector, lock_client: &Client) -> Result<(), Error> {
    let schema = connector.options().schema.as_str();
    let lock = xxh3_64(format!("stepfast preparation {schema}").as_bytes()).cast_signed();
    let settings = connector.transaction_settings(Purpose::Migration);
    let sql = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; {settings} SELECT pg_try_advisory_xact_lock({lock})::text"
    );
    let mut has_logged = false;
    loop {
        let row = query_first_row(lock_client, &sql).await?.unwrap_or_default();
        if row.into_iter().flatten().any(|has_lock| has_lock == "true") {
            return Ok(());
        }
        lock_client.batch_execute("ROLLBACK").await?;
        if !has_logged {
            tracing::info!(schema, "waiting for another process that is preparing the same migration");
            has_logged = true;
        }
        tokio::time::sleep(LOCK_RETRY_INTERVAL).await;
    }
}

/// Returns the statements that [`prepare`] would execute, as a script.
pub(crate) async fn preparation_script(client: &Client, schema: &str, found: i64) -> Result<String, Error> {
    let mut sql = String::new();
    for preparation in preparations_after(found) {
        for statement in preparation.statements(client, schema, found).await? {
            sql.push_str(&format!("{statement};\n"));
        }
    }
    if !sql.is_empty() {
        let header = "-- Run these statements before the migration, outside of a transaction. Older engines may run meanwhile.";
        sql = format!("{header}\n{NO_TIMEOUTS}{sql}\n-- The migration.\n");
    }
    Ok(sql)
}

fn preparations_after(found: i64) -> impl Iterator<Item = &'static Preparation> {
    PREPARATIONS.iter().filter(move |preparation| preparation.version > found)
}

impl Preparation {
    /// Returns the statements that are still needed for the index in a schema of version `now`.
    async fn statements(&self, client: &Client, schema: &str, now: i64) -> Result<Vec<String>, Error> {
        let sql = format!(
            "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname ={} AND c.relname ={}",
            quote_literal(schema),
            quote_literal(self.index)
        );
        let row = query_first_row(client, &sql).await?;
        let is_valid = row.map(|row| row.into_iter().flatten().any(|is_valid| is_valid == "t"));
        let schema = quote_identifier(schema);
        let drop = || format!("DROP INDEX CONCURRENTLY IF EXISTS {schema}.{}", self.index);
        let build = || self.sql.replace(":schema", &schema).trim_end().trim_end_matches(';').to_owned();
        let is_migrated = now >= self.version;
        Ok(match (is_valid, is_migrated) {
            (None, true) | (Some(true), false) => vec![],
            (Some(_), true) if self.is_kept => vec![],
            // another process has migrated while the index was built
            (Some(_), true) => vec![drop()],
            (Some(false), false) => vec![drop(), build()],
            (None, false) => vec![build()],
        })
    }
}
