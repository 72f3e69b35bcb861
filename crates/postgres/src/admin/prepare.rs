//! Preparations: indexes that a migration of a large database reads, built before older engines are asked to end.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};
use xxhash_rust::xxh3::xxh3_64;

use crate::admin::schema_state::version_of;
use crate::conn::connector::{Connector, Role};
use crate::conn::pooler::query_first_row;
use crate::quoting::{literal, quoted};

/// An index on `executions` that the migration to a version reads, and drops.
struct Preparation {
    version: i64,
    index: &'static str,
    /// One statement, as a transaction cannot build an index concurrently. It runs on the schema of any older version.
    sql: &'static str,
}

const PREPARATIONS: &[Preparation] = &[Preparation {
    version: 4,
    index: "executions_with_deadline",
    sql: include_str!("../../migrations/V4__hardening.before.sql"),
}];

/// Lets statements outside of a transaction wait: a concurrent build waits for all transactions that began before it.
const PATIENCE: &str = "SET statement_timeout TO 0;\nSET lock_timeout TO 0;\n";

/// How often a process asks whether it is its turn.
const TURN_EVERY: Duration = Duration::from_millis(200);

/// Builds the indexes that the migrations of a schema of version `found` read, and returns the version then: another process
/// may have migrated meanwhile. Older engines go on working.
///
/// After an error or a crash the next call goes on. A valid index is kept, and an invalid one is built again. `turn` is a
/// connection of its own: processes take turns.
pub(crate) async fn prepare(
    connector: &Connector,
    client: &Client,
    turn: &Client,
    found: i64,
) -> Result<i64, Error> {
    let schema = connector.options().schema.as_str();
    take_turn(connector, turn).await?;
    if !connector.is_pooled() {
        // through a proxy that would stay behind in a session of the server
        client.batch_execute(&format!("{}{PATIENCE}", connector.session_settings(Role::Migration))).await?;
    }
    let mut now = found;
    for preparation in after(found) {
        loop {
            now = version_of(client, schema).await?.version().unwrap_or(found);
            let statements = preparation.statements(client, schema, now).await?;
            if statements.is_empty() {
                break;
            }
            let index = preparation.index;
            tracing::info!(
                schema,
                index,
                "building an index before the migration: this waits for older transactions, and engines go on"
            );
            for statement in statements {
                match client.batch_execute(&statement).await {
                    // with a build that a process has left behind
                    Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => break,
                    result => result?,
                }
            }
        }
    }
    // a turn that was lost meanwhile takes nothing back
    let _ = turn.batch_execute("ROLLBACK").await;
    Ok(now)
}

/// Begins a transaction with a lock that one process has at a time. The lock is tried again and again: a session that waits
/// for one has a snapshot, for which the build of the other process would wait. An idle transaction has none.
async fn take_turn(connector: &Connector, turn: &Client) -> Result<(), Error> {
    let schema = connector.options().schema.as_str();
    let lock = xxh3_64(format!("stepfast preparation {schema}").as_bytes()).cast_signed();
    let settings = connector.local_settings(Role::Migration);
    let ask = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; {settings} SELECT pg_try_advisory_xact_lock({lock})::text"
    );
    let mut has_told = false;
    loop {
        let row = query_first_row(turn, &ask).await?.unwrap_or_default();
        if row.into_iter().flatten().any(|is_ours| is_ours == "true") {
            return Ok(());
        }
        turn.batch_execute("ROLLBACK").await?;
        if !has_told {
            tracing::info!(schema, "waiting for another process that prepares the same migration");
            has_told = true;
        }
        tokio::time::sleep(TURN_EVERY).await;
    }
}

/// Returns what [`prepare`] would execute, as a script.
pub(crate) async fn printed(client: &Client, schema: &str, found: i64) -> Result<String, Error> {
    let mut sql = String::new();
    for preparation in after(found) {
        for statement in preparation.statements(client, schema, found).await? {
            sql.push_str(&format!("{statement};\n"));
        }
    }
    if !sql.is_empty() {
        let what =
            "-- Before the migration, while older engines work; these statements cannot be in a transaction.";
        sql = format!("{what}\n{PATIENCE}{sql}\n-- The migration.\n");
    }
    Ok(sql)
}

fn after(found: i64) -> impl Iterator<Item = &'static Preparation> {
    PREPARATIONS.iter().filter(move |preparation| preparation.version > found)
}

impl Preparation {
    /// Returns what is to be done about the index in a schema of version `now`.
    async fn statements(&self, client: &Client, schema: &str, now: i64) -> Result<Vec<String>, Error> {
        let ask = format!(
            "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname ={} AND c.relname ={}",
            literal(schema),
            literal(self.index)
        );
        let row = query_first_row(client, &ask).await?;
        let is_valid = row.map(|row| row.into_iter().flatten().any(|is_valid| is_valid == "t"));
        let schema = quoted(schema);
        let drop = || format!("DROP INDEX CONCURRENTLY IF EXISTS {schema}.{}", self.index);
        let build = || self.sql.replace(":schema", &schema).trim_end().trim_end_matches(';').to_owned();
        let is_over = now >= self.version;
        Ok(match (is_valid, is_over) {
            (None, true) | (Some(true), false) => vec![],
            // another process has migrated while it was built
            (Some(_), true) => vec![drop()],
            (Some(false), false) => vec![drop(), build()],
            (None, false) => vec![build()],
        })
    }
}
