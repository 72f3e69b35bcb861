//! The schema: made and brought up to date under a lock, and refused if it is newer than this program.

use refinery::embed_migrations;
use stepfast_core::store::StoreError;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use xxhash_rust::xxh3::xxh3_64;

use crate::background::Background;
use crate::connect::{Connector, Role, chain, quoted};

embed_migrations!("migrations");

/// The table that refinery keeps its account in.
const VERSIONS: &str = "schema_version";

/// Oldest server that has what the statements need, as `server_version_num`.
const OLDEST_SERVER: i32 = 130_000;

/// Brings the schema up to date and returns the server's version, for people.
///
/// Several processes may do this at once: they take turns behind an advisory lock, and all but the first
/// find nothing to do.
pub(crate) async fn migrate(connector: &Connector, background: &Background) -> Result<String, StoreError> {
    let open = |reason: String| StoreError::Open { store: connector.name().to_owned(), reason };
    let fail = |what: &str, error: &tokio_postgres::Error| open(format!("{what}: {}", chain(error)));
    let (mut client, _) = connector
        .dial(background.runtime(), Role::Migration)
        .await
        .map_err(|error| open(format!("{}; {}", chain(&error), advice(&error))))?;
    let row = client
        .query_one(
            "SELECT current_setting('server_version'), current_setting('server_version_num')::int",
            &[],
        )
        .await
        .map_err(|error| fail("asking for the server's version", &error))?;
    let version: String = row.try_get(0).map_err(|error| fail("reading the server's version", &error))?;
    let number: i32 = row.try_get(1).map_err(|error| fail("reading the server's version", &error))?;
    if number < OLDEST_SERVER {
        return Err(open(format!("the server is Postgres {version}; 13 or newer is needed")));
    }
    let schema = connector.options().schema.as_str();
    let lock = xxh3_64(format!("stepfast schema {schema}").as_bytes()).cast_signed();
    // ends with the connection
    client
        .execute("SELECT pg_advisory_lock($1)", &[&lock])
        .await
        .map_err(|error| fail("waiting for the lock on the schema", &error))?;
    let supported = newest();
    match version_of(&client, schema).await.map_err(|error| fail("reading the schema's version", &error))? {
        Some(found) if found > supported => return Err(StoreError::NewerSchema { found, supported }),
        Some(found) if found == supported => return Ok(version),
        Some(_) => {}
        None if connector.options().must_exist => {
            return Err(open(format!(
                "it has no schema {schema:?} with executions; is it the right database?"
            )));
        }
        None => {
            client
                .batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {}", quoted(schema)))
                .await
                .map_err(|error| fail("making the schema", &error))?;
        }
    }
    let mut runner = migrations::runner();
    runner.set_migration_table_name(VERSIONS);
    let report = runner
        .run_async(&mut client)
        .await
        .map_err(|error| open(format!("bringing schema {schema:?} up to date: {}", chain(&error))))?;
    for migration in report.applied_migrations() {
        tracing::info!(schema, migration = migration.to_string(), "migrated");
    }
    client
        .batch_execute(&format!(
            "COMMENT ON TABLE {VERSIONS} IS 'One row per migration that was applied'; \
             COMMENT ON COLUMN {VERSIONS}.version IS 'Its number'; \
             COMMENT ON COLUMN {VERSIONS}.name IS 'Its name'; \
             COMMENT ON COLUMN {VERSIONS}.applied_on IS 'When'; \
             COMMENT ON COLUMN {VERSIONS}.checksum IS 'Hash of its text'"
        ))
        .await
        .map_err(|error| fail("commenting the account of migrations", &error))?;
    Ok(version)
}

/// What to do about a connection that cannot be made.
fn advice(error: &tokio_postgres::Error) -> &'static str {
    match error.code() {
        Some(code)
            if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) =>
        {
            "check user and password in the URL, and the server's pg_hba.conf"
        }
        Some(code) if *code == SqlState::INVALID_CATALOG_NAME => {
            "create the database, or name another one in the URL"
        }
        Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => {
            "raise max_connections of the server, or use fewer processes"
        }
        Some(_) => "the server says what is wrong",
        None => "is the server running, and are host and port in the URL right?",
    }
}

/// The newest schema that this program knows.
fn newest() -> i64 {
    let runner = migrations::runner();
    runner.get_migrations().iter().map(|migration| i64::from(migration.version())).max().unwrap_or(0)
}

/// The schema's version; `None` if there is no such schema or nothing of ours in it.
async fn version_of(client: &Client, schema: &str) -> Result<Option<i64>, tokio_postgres::Error> {
    let table = format!("{}.{VERSIONS}", quoted(schema));
    let row = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await?;
    if !row.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    let row = client.query_one(&format!("SELECT max(version)::bigint FROM {table}"), &[]).await?;
    row.try_get(0)
}
