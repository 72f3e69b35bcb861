//! Opens stores and migrates schemas: creates or updates the schema under a lock, and rejects a schema that is newer
//! than this program.

use std::time::Duration;

use stepfast_core::store::{MigrationReport, StoreError};
use stepfast_core::text::list_names;
use tokio::time::Instant;
use tokio_postgres::{Client, Error};
use xxhash_rust::xxh3::xxh3_64;

use crate::admin::prepare::{preparation_script, prepare};
use crate::admin::role::{RolePrivileges, missing_privileges};
use crate::admin::schema_state::{SchemaState, explain_schema_error, read_schema_state, schema_exists};
use crate::conn::background::BackgroundRuntime;
use crate::conn::connector::{Connector, Purpose, StoreIdentity};
use crate::conn::dial::error_chain;
use crate::conn::dial::{ConnectError, DialedClient, is_transient, open_error};
use crate::conn::options::PostgresOptions;
use crate::conn::pooler::{detect_transaction_pooling, query_first_row, query_rows};
use crate::conn::session::Session;
use crate::conn::statements::HEARTBEAT_STATEMENTS;
use crate::error::query_error;
use crate::notify::hint_channel;
use crate::quoting::{quote_identifier, quote_literal};
use crate::schema::{
    FIRST_WITH_CLIENTS, FIRST_WITH_SHARD, OTHER_BUILD_ADVICE, grant_script, migration_script, newest_version,
    pending_migrations,
};

/// The oldest server that supports the store's statements, as `server_version_num`.
const OLDEST_SERVER: i32 = 130_000;

/// The number of executions up to which an engine migrates the schema by itself when it opens. A migration may take
/// time in proportion to that number, and a supervisor could kill the process before the migration ends.
const MAX_EXECUTIONS_TO_MIGRATE_AT_OPEN: u64 = 1_000_000;

/// The minimum size of a row of the table `executions`, in bytes.
const MIN_ROW_BYTES: u64 = 150;

/// The time for which a migration waits until workers of older programs have stopped.
const OLDER_WORKER_TIMEOUT: Duration = Duration::from_mins(1);

/// The first connections to a server, before the store has changed anything on them.
pub(crate) struct Connected {
    /// A connection of purpose `Migration`, which is not configured yet.
    pub client: Client,
    /// A connection of purpose `Control`, which is not configured yet. `None` with a proxy that pools transactions.
    pub control: Option<DialedClient>,
    /// The server's version, for messages.
    pub version: String,
}

/// Connects to the server. Returns an error if the server is too old, or if a proxy pools transactions and the URL does
/// not mention it.
pub(crate) async fn connect(
    connector: &Connector,
    background: &BackgroundRuntime,
) -> Result<Connected, StoreError> {
    let open = |reason: String| StoreError::Open { store: connector.name().to_owned(), reason };
    let fail = |action: &str, error: &Error| {
        let error = ConnectError::from_driver(error);
        ConnectError { message: format!("{action}: {}", error.message), ..error }
            .into_open_error(connector.name())
    };
    let dial = async |purpose| {
        connector
            .dial_with_retry(background, purpose)
            .await
            .map_err(|error| error.into_open_error(connector.name()))
    };
    let client = dial(Purpose::Migration).await?.client;
    let sql = "SELECT current_setting('server_version'), current_setting('server_version_num')::int";
    let row =
        query_first_row(&client, sql).await.map_err(|error| fail("reading the server's version", &error))?;
    let mut row = row.unwrap_or_default().into_iter().flatten();
    let version = row.next().unwrap_or_default();
    let number: i32 = row.next().and_then(|number| number.parse().ok()).unwrap_or(0);
    if number < OLDEST_SERVER {
        return Err(open(format!("the server is Postgres {version}; 13 or newer is required")));
    }
    if connector.is_pooled() {
        return Ok(Connected { client, control: None, version });
    }
    let control = dial(Purpose::Control).await?;
    let is_pooled = detect_transaction_pooling(&client, &control.client).await;
    if is_pooled.map_err(|error| fail("detecting a proxy", &error))? {
        return Err(open(
            "a proxy that pools transactions is in front of the server: add pooling=transaction to the URL (and \
             listen=, the percent-encoded URL of the server itself, for wake-up hints), or connect to the server itself"
                .into(),
        ));
    }
    Ok(Connected { client, control: Some(control), version })
}

/// Brings the schema up to date. Returns the server's version for messages, the store's identity, and the session for
/// heartbeats, if it is open already.
pub(crate) async fn open(
    connector: &Connector,
    background: &BackgroundRuntime,
) -> Result<(String, StoreIdentity, Option<Session>), StoreError> {
    let Connected { client, control, version } = connect(connector, background).await?;
    migrate(connector, background, &client, false, None, false).await?;
    let PostgresOptions { schema, must_exist, .. } = connector.options();
    // with `must_exist`, the client may only read, and then needs fewer privileges
    if !must_exist {
        check_privileges(&client, schema, connector.name()).await?;
    }
    let identity = connector.check_identity(&client).await.map_err(|error| match query_error(error) {
        StoreError::Unavailable(reason) => open_error(connector.name(), true, reason),
        error => error,
    })?;
    if connector.is_pooled() && !connector.can_listen() {
        tracing::warn!(
            database = connector.name(),
            "wake-up hints do not work through a proxy that pools transactions: changes by other processes are noticed \
             once a second; to get hints, set listen= to the URL of the server itself"
        );
    }
    let control = match control {
        Some(dialed) => {
            let prepared = async {
                connector.set_up(&dialed.client, Purpose::Control).await?;
                Session::from_client(connector, dialed, Purpose::Control, HEARTBEAT_STATEMENTS).await
            };
            Some(prepared.await.map_err(|error| match error {
                // no request was sent yet
                StoreError::Unavailable(reason) => open_error(connector.name(), true, reason),
                error => error,
            })?)
        }
        None => None,
    };
    Ok((version, identity, control))
}

/// Returns an error if the role lacks a privilege that an engine needs. Otherwise the engine would fail later, during a
/// flush or a takeover.
async fn check_privileges(client: &Client, schema: &str, store: &str) -> Result<(), StoreError> {
    let fail = |error: Error| ConnectError::from_driver(&error).into_open_error(store);
    let Some(missing) = missing_privileges(client, schema).await.map_err(fail)? else { return Ok(()) };
    let role = RolePrivileges::read(client, schema).await.map_err(fail)?;
    Err(open_error(store, false, format!("role {:?} lacks {missing}; {}", role.name, role.advice())))
}

/// Brings the schema up to date, and grants `role` its privileges. If `is_dry` is true, only returns the script.
///
/// `is_explicit` is true for `stepfast db migrate`, which may stop older workers and migrate large schemas. An engine that
/// opens does neither.
///
/// Several processes may migrate at once. A lock that is held until the end of the transaction serialises them, and all
/// but the first process find nothing to do. A schema that is up to date is only read.
pub(crate) async fn migrate(
    connector: &Connector,
    background: &BackgroundRuntime,
    client: &Client,
    is_dry: bool,
    role: Option<&str>,
    is_explicit: bool,
) -> Result<MigrationReport, StoreError> {
    let PostgresOptions { schema, must_exist, .. } = connector.options();
    let open = |reason: String| StoreError::Open { store: connector.name().to_owned(), reason };
    let fail = |error: &Error, reason: String| open_error(connector.name(), is_transient(error), reason);
    let supported = newest_version();
    let found = read_schema_state(client, schema).await;
    let found = match found {
        Ok(SchemaState::OtherBuild(version)) => {
            return Err(open(format!(
                "the tables of schema {schema:?} were created by another build of version {version}; {OTHER_BUILD_ADVICE}"
            )));
        }
        Ok(found) => found.version(),
        Err(error) => {
            return Err(fail(
                &error,
                explain_schema_error(client, schema, "reading the schema's version", &error).await,
            ));
        }
    };
    let mut report = MigrationReport {
        database: connector.name().to_owned(),
        schema: Some(schema.clone()),
        found_version: found,
        required_version: supported,
        ..MigrationReport::default()
    };
    match found {
        Some(found) if found > supported => return Err(StoreError::NewerSchema { found, supported }),
        Some(found) if found == supported && role.is_none() => return Ok(report),
        Some(found) if *must_exist && found < supported && role.is_none() => {
            return Err(open(format!(
                "its schema has version {found}, and this program needs version {supported}; to bring it up to date, run \
                 stepfast db migrate"
            )));
        }
        None if *must_exist && role.is_none() => {
            return Err(open(format!(
                "it has no schema {schema:?} with executions; is this the right database? To create the schema, open an engine or \
                 run stepfast db migrate"
            )));
        }
        _ => {}
    }
    let mut is_outdated = found.is_some_and(|found| found < supported);
    let executions = if is_outdated { count_if_large(client, schema).await } else { Ok(None) };
    let executions = executions.map_err(|error| fail(&error, error_chain(&error)))?;
    if is_dry {
        let has_schema =
            schema_exists(client, schema).await.map_err(|error| fail(&error, error_chain(&error)))?;
        if let (Some(found), Some(_)) = (found, executions) {
            report.sql = preparation_script(client, schema, found)
                .await
                .map_err(|error| fail(&error, error_chain(&error)))?;
        }
        let sql = full_script(schema, has_schema, found, role);
        let guard =
            found.filter(|_| is_outdated).map(|found| live_worker_guard(schema, found)).unwrap_or_default();
        report.migrations = pending_migrations(found).iter().map(ToString::to_string).collect();
        report.sql.push_str(&format!("BEGIN;\n{guard}{sql}COMMIT;"));
        return Ok(report);
    }
    if let (Some(found), Some(executions)) = (found, executions) {
        if !is_explicit {
            return Err(open(format!(
                "its schema has version {found}, this program needs version {supported}, and about {executions} executions \
                 are stored: an engine migrates only small schemas by itself; run stepfast db migrate"
            )));
        }
        let lock_client = connector.dial_with_retry(background, Purpose::Migration).await;
        let lock_client = lock_client.map_err(|error| error.into_open_error(connector.name()))?.client;
        match prepare(connector, client, &lock_client, found).await {
            // another process may have migrated in the meantime
            Ok(found) => is_outdated = found < supported,
            Err(error) => {
                let action = format!("preparing the migration of schema {schema:?}, which has not begun");
                return Err(fail(&error, explain_schema_error(client, schema, &action, &error).await));
            }
        }
    }
    if is_outdated {
        let stopped =
            stop_older_workers(client, schema, found.unwrap_or_default(), supported, is_explicit).await;
        if let Err(reason) = stopped.map_err(|error| fail(&error, error_chain(&error)))? {
            return Err(open(reason));
        }
    }
    match migrate_under_lock(connector, client, role).await {
        Ok(Some(applied)) => {
            for migration in &applied {
                tracing::info!(schema, migration, "migrated");
            }
            report.migrations = applied;
            report.granted_role = role.map(str::to_owned);
            Ok(report)
        }
        Ok(None) => {
            let found = read_schema_state(client, schema)
                .await
                .ok()
                .and_then(SchemaState::version)
                .unwrap_or_default();
            Err(StoreError::NewerSchema { found, supported })
        }
        Err(error) => {
            let _ = client.batch_execute("ROLLBACK").await;
            let action = format!("bringing schema {schema:?} up to date");
            Err(fail(&error, explain_schema_error(client, schema, &action, &error).await))
        }
    }
}

/// Returns the server's estimate of the number of stored executions, if the number is so large that an engine leaves
/// migrations to `db migrate`.
async fn count_if_large(client: &Client, schema: &str) -> Result<Option<u64>, Error> {
    // a restored or copied table has no estimate before it is analyzed, so its size is used
    let sql = format!(
        "SELECT CASE WHEN reltuples > 0 THEN reltuples::bigint ELSE pg_relation_size(c.oid) / {MIN_ROW_BYTES} END \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname ={} AND c.relname = 'executions'",
        quote_literal(schema)
    );
    let row = query_first_row(client, &sql).await?.unwrap_or_default();
    let rows = row.into_iter().flatten().next().and_then(|rows| rows.parse().ok());
    Ok(rows.filter(|rows| *rows > MAX_EXECUTIONS_TO_MIGRATE_AT_OPEN))
}

/// Stops the engines of older programs before a migration from version `found` to `wanted`. The inner `Err` explains
/// why some engines still run. If `may_stop` is false, running workers are only reported.
pub(crate) async fn stop_older_workers(
    client: &Client,
    schema: &str,
    found: i64,
    wanted: i64,
    may_stop: bool,
) -> Result<Result<(), String>, Error> {
    let (schema, hint) = (quote_identifier(schema), hint_query(schema));
    let sql = format!(
        "SELECT host || ' (pid ' || pid || ')' FROM {schema}.workers WHERE {} ORDER BY worker_id",
        live_worker_condition(found)
    );
    let live_workers = async || {
        let workers: Vec<String> = query_rows(client, &sql).await?.into_iter().flatten().flatten().collect();
        Ok::<_, Error>((!workers.is_empty()).then(|| list_names(workers.iter().map(String::as_str))))
    };
    let Some(mut workers) = live_workers().await? else { return Ok(Ok(())) };
    if found < FIRST_WITH_SHARD {
        return Ok(Err(format!(
            "workers of an older program use it, and a migration cannot stop them: {workers}; stop them, then run \
             stepfast db migrate"
        )));
    }
    if !may_stop {
        return Ok(Err(format!(
            "workers of an older program use it: {workers}; stepfast db migrate stops them and migrates the schema from \
             version {found} to {wanted}"
        )));
    }
    tracing::info!(workers, "asking the workers of an older program to stop");
    client
        .batch_execute(&format!(
            "UPDATE {schema}.shard SET oldest_engine = greatest(oldest_engine, {wanted}); {hint}"
        ))
        .await?;
    let deadline = Instant::now() + OLDER_WORKER_TIMEOUT;
    while Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        match live_workers().await? {
            None => return Ok(Ok(())),
            Some(remaining) => workers = remaining,
        }
    }
    Ok(Err(format!(
        "workers of an older program were asked to stop and are still running after {} s: {workers}; stop them, then run \
         stepfast db migrate again",
        OLDER_WORKER_TIMEOUT.as_secs()
    )))
}

/// Returns the SQL condition for live workers among the rows of `workers`, in a schema of version `found`. Clients do not
/// count as workers.
fn live_worker_condition(found: i64) -> &'static str {
    if found < FIRST_WITH_CLIENTS {
        "lease_expires_at > clock_timestamp()"
    } else {
        "NOT is_client AND lease_expires_at > clock_timestamp()"
    }
}

/// Returns a statement for scripts that fails while workers of an older program are alive.
fn live_worker_guard(schema: &str, found: i64) -> String {
    let condition = live_worker_condition(found);
    format!(
        "DO $$\nBEGIN\n    IF EXISTS (SELECT FROM {}.workers WHERE {condition}) THEN\n        RAISE EXCEPTION 'workers of an \
         older program use schema %', {} USING HINT = 'stop them, then run this script again';\n    END IF;\nEND\n$$;\n",
        quote_identifier(schema),
        quote_literal(schema)
    )
}

/// Applies the missing migrations under the lock, and returns them. Returns `None` if another process has applied
/// migrations that this program does not know.
async fn migrate_under_lock(
    connector: &Connector,
    client: &Client,
    role: Option<&str>,
) -> Result<Option<Vec<String>>, Error> {
    let schema = connector.options().schema.as_str();
    let lock = xxh3_64(format!("stepfast schema {schema}").as_bytes()).cast_signed();
    let settings = connector.transaction_settings(Purpose::Migration);
    client
        .batch_execute(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; {settings} SELECT pg_advisory_xact_lock({lock})"
        ))
        .await?;
    let found = read_schema_state(client, schema).await?.version();
    if found.is_some_and(|found| found > newest_version()) {
        client.batch_execute("ROLLBACK").await?;
        return Ok(None);
    }
    let sql = full_script(schema, schema_exists(client, schema).await?, found, role);
    if !sql.is_empty() {
        client.batch_execute(&sql).await?;
    }
    client.batch_execute(&format!("{}; COMMIT", hint_query(schema))).await?;
    Ok(Some(pending_migrations(found).iter().map(ToString::to_string).collect()))
}

/// Returns a query that makes all engines on the schema send a heartbeat. Without this query, clients send a heartbeat
/// only seldom.
fn hint_query(schema: &str) -> String {
    format!("SELECT pg_notify({}, 'migration anything')", quote_literal(&hint_channel(schema)))
}

fn full_script(schema: &str, has_schema: bool, found: Option<i64>, role: Option<&str>) -> String {
    let pending = pending_migrations(found);
    let mut sql = if pending.is_empty() {
        String::new()
    } else {
        migration_script(schema, has_schema, found, &pending)
    };
    if let Some(role) = role {
        sql.push_str(&grant_script(schema, role));
    }
    sql
}
