//! Opening: the schema is made and brought up to date under a lock, and refused if it is newer than this program.

use std::time::Duration;

use stepfast_core::store::{MigrationReport, StoreError};
use stepfast_core::text::list_names;
use tokio::time::Instant;
use tokio_postgres::{Client, Error};
use xxhash_rust::xxh3::xxh3_64;

use crate::admin::prepare::{prepare, printed};
use crate::admin::role::{Standing, lacking};
use crate::admin::schema_state::{SchemaState, is_there, refused, version_of};
use crate::conn::background::Background;
use crate::conn::connector::{Connector, Identity, Role};
use crate::conn::dial::chain;
use crate::conn::dial::{Refusal, Wire, is_passing, not_open};
use crate::conn::options::PostgresOptions;
use crate::conn::pooler::{query_first_row, detect_transaction_pooling, query_rows};
use crate::conn::session::Session;
use crate::conn::statements::CONTROL;
use crate::error::query_error;
use crate::notify::hint_channel;
use crate::quoting::{literal, quoted};
use crate::schema::{FIRST_WITH_CLIENTS, FIRST_WITH_SHARD, NOT_OURS, applying, granting, newest, pending};

/// Oldest server that has what the statements need, as `server_version_num`.
const OLDEST_SERVER: i32 = 130_000;

/// Executions up to which an engine that is opened brings the schema up to date by itself. A migration may take a time that
/// grows with them, and a supervisor would end the process meanwhile.
const SMALL: u64 = 1_000_000;

/// Bytes that a row of `executions` takes in its table: at least this.
const ROW: u64 = 150;

/// How long workers of older programs have to end.
const WAY_WITHIN: Duration = Duration::from_mins(1);

/// A server that was reached, before anything was changed in it.
pub(crate) struct Reached {
    /// A connection of the role `Migration`; nothing is set.
    pub client: Client,
    /// A connection of the role `Control`, where there is no proxy for transactions; nothing is set.
    pub control: Option<Wire>,
    /// The server's version, for people.
    pub version: String,
}

/// Connects, and refuses a server that is too old, or a proxy that the URL does not speak of.
pub(crate) async fn reach(connector: &Connector, background: &Background) -> Result<Reached, StoreError> {
    let open = |reason: String| StoreError::Open { store: connector.name().to_owned(), reason };
    let fail = |what: &str, error: &Error| {
        let refusal = Refusal::of(error);
        Refusal { text: format!("{what}: {}", refusal.text), ..refusal }.opening(connector.name())
    };
    let dial = async |role| {
        connector.dial_with_retry(background, role).await.map_err(|refusal| refusal.opening(connector.name()))
    };
    let client = dial(Role::Migration).await?.client;
    let ask = "SELECT current_setting('server_version'), current_setting('server_version_num')::int";
    let row =
        query_first_row(&client, ask).await.map_err(|error| fail("asking for the server's version", &error))?;
    let mut row = row.unwrap_or_default().into_iter().flatten();
    let version = row.next().unwrap_or_default();
    let number: i32 = row.next().and_then(|number| number.parse().ok()).unwrap_or(0);
    if number < OLDEST_SERVER {
        return Err(open(format!("the server is Postgres {version}; 13 or newer is needed")));
    }
    if connector.is_pooled() {
        return Ok(Reached { client, control: None, version });
    }
    let control = dial(Role::Control).await?;
    let pools = detect_transaction_pooling(&client, &control.client).await;
    if pools.map_err(|error| fail("looking for a proxy", &error))? {
        return Err(open(
            "a proxy that pools transactions stands before the server: add pooling=transaction to the URL (and \
             listen=, the percent-encoded URL of the server itself, for wake-up hints), or connect to the server"
                .into(),
        ));
    }
    Ok(Reached { client, control: Some(control), version })
}

/// Brings the schema up to date; returns the server's version, for people, which store it is, and a connection for
/// looks, if there is one already.
pub(crate) async fn open(
    connector: &Connector,
    background: &Background,
) -> Result<(String, Identity, Option<Session>), StoreError> {
    let Reached { client, control, version } = reach(connector, background).await?;
    migrate(connector, background, &client, false, None, false).await?;
    let PostgresOptions { schema, must_exist, .. } = connector.options();
    // a client that only reads may have fewer rights
    if !must_exist {
        allowed(&client, schema, connector.name()).await?;
    }
    let identity = connector.check_identity(&client).await.map_err(|trouble| match query_error(trouble) {
        StoreError::Unavailable(reason) => not_open(connector.name(), true, reason),
        error => error,
    })?;
    if connector.is_pooled() && !connector.can_listen() {
        tracing::warn!(
            database = connector.name(),
            "no wake-up hints come through a proxy that pools transactions: other processes' news are seen once a \
             second; give the server's own URL with listen= for more"
        );
    }
    let looking = match control {
        Some(wire) => {
            let prepared = async {
                connector.set_up(&wire.client, Role::Control).await?;
                Session::from_client(connector, wire, Role::Control, CONTROL).await
            };
            Some(prepared.await.map_err(|error| match error {
                // nothing was asked for yet
                StoreError::Unavailable(reason) => not_open(connector.name(), true, reason),
                error => error,
            })?)
        }
        None => None,
    };
    Ok((version, identity, looking))
}

/// An error unless the role may do all that an engine does: it would be noticed late, where it does most harm.
async fn allowed(client: &Client, schema: &str, store: &str) -> Result<(), StoreError> {
    let fail = |error: Error| Refusal::of(&error).opening(store);
    let Some(lacking) = lacking(client, schema).await.map_err(fail)? else { return Ok(()) };
    let role = Standing::of(client, schema).await.map_err(fail)?;
    Err(not_open(store, false, format!("role {:?} lacks {lacking}; {}", role.name, role.advice())))
}

/// Brings the schema up to date, and lets `role` use it; or only says how, if `is_dry`.
///
/// Several processes may do this at once: they take turns behind a lock that ends with the transaction, and all
/// but the first find nothing to do. A schema that is up to date is only read.
pub(crate) async fn migrate(
    connector: &Connector,
    background: &Background,
    client: &Client,
    is_dry: bool,
    role: Option<&str>,
    is_asking: bool,
) -> Result<MigrationReport, StoreError> {
    let PostgresOptions { schema, must_exist, .. } = connector.options();
    let open = |reason: String| StoreError::Open { store: connector.name().to_owned(), reason };
    let failed = |error: &Error, reason: String| not_open(connector.name(), is_passing(error), reason);
    let supported = newest();
    let found = version_of(client, schema).await;
    let found = match found {
        Ok(SchemaState::NotOurs(version)) => {
            return Err(open(format!(
                "the tables of schema {schema:?} were made by another build of version {version}; {NOT_OURS}"
            )));
        }
        Ok(found) => found.version(),
        Err(error) => {
            return Err(failed(
                &error,
                refused(client, schema, "reading the schema's version", &error).await,
            ));
        }
    };
    let mut migrated = MigrationReport {
        database: connector.name().to_owned(),
        schema: Some(schema.clone()),
        found_version: found,
        required_version: supported,
        ..MigrationReport::default()
    };
    match found {
        Some(found) if found > supported => return Err(StoreError::NewerSchema { found, supported }),
        Some(found) if found == supported && role.is_none() => return Ok(migrated),
        Some(found) if *must_exist && found < supported && role.is_none() => {
            return Err(open(format!(
                "its schema has version {found}, and this program needs version {supported}; bring it up to date: \
                 stepfast db migrate"
            )));
        }
        None if *must_exist && role.is_none() => {
            return Err(open(format!(
                "it has no schema {schema:?} with executions; is it the right database? An engine makes it, or: \
                 stepfast db migrate"
            )));
        }
        _ => {}
    }
    let mut is_outdated = found.is_some_and(|found| found < supported);
    let many = if is_outdated { many_rows(client, schema).await } else { Ok(None) };
    let many = many.map_err(|error| failed(&error, chain(&error)))?;
    if is_dry {
        let is_there = is_there(client, schema).await.map_err(|error| failed(&error, chain(&error)))?;
        if let (Some(found), Some(_)) = (found, many) {
            migrated.sql =
                printed(client, schema, found).await.map_err(|error| failed(&error, chain(&error)))?;
        }
        let sql = text(schema, is_there, found, role);
        let guard = found.filter(|_| is_outdated).map(|found| guard(schema, found)).unwrap_or_default();
        migrated.migrations = pending(found).iter().map(ToString::to_string).collect();
        migrated.sql.push_str(&format!("BEGIN;\n{guard}{sql}COMMIT;"));
        return Ok(migrated);
    }
    if let (Some(found), Some(rows)) = (found, many) {
        if !is_asking {
            return Err(open(format!(
                "its schema has version {found}, this program needs version {supported}, and about {rows} executions are \
                 stored: an engine brings only a small schema up to date by itself; run stepfast db migrate"
            )));
        }
        let turn = connector.dial_with_retry(background, Role::Migration).await;
        let turn = turn.map_err(|refusal| refusal.opening(connector.name()))?.client;
        match prepare(connector, client, &turn, found).await {
            // another process may have migrated meanwhile
            Ok(found) => is_outdated = found < supported,
            Err(error) => {
                let what = format!("preparing the migration of schema {schema:?}, which was not begun");
                return Err(failed(&error, refused(client, schema, &what, &error).await));
            }
        }
    }
    if is_outdated {
        let way = make_way(client, schema, found.unwrap_or_default(), supported, is_asking).await;
        if let Err(reason) = way.map_err(|error| failed(&error, chain(&error)))? {
            return Err(open(reason));
        }
    }
    match locked(connector, client, role).await {
        Ok(Some(applied)) => {
            for migration in &applied {
                tracing::info!(schema, migration, "migrated");
            }
            migrated.migrations = applied;
            migrated.granted_role = role.map(str::to_owned);
            Ok(migrated)
        }
        Ok(None) => {
            let found =
                version_of(client, schema).await.ok().and_then(SchemaState::version).unwrap_or_default();
            Err(StoreError::NewerSchema { found, supported })
        }
        Err(error) => {
            let _ = client.batch_execute("ROLLBACK").await;
            let what = format!("bringing schema {schema:?} up to date");
            Err(failed(&error, refused(client, schema, &what, &error).await))
        }
    }
}

/// Returns how many executions are stored, as the server estimates, where an engine leaves migrations to `db migrate`.
async fn many_rows(client: &Client, schema: &str) -> Result<Option<u64>, Error> {
    // a table that was restored or copied has no estimate before it is analyzed: its size tells
    let ask = format!(
        "SELECT CASE WHEN reltuples > 0 THEN reltuples::bigint ELSE pg_relation_size(c.oid) / {ROW} END FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname ={} AND c.relname = 'executions'",
        literal(schema)
    );
    let row = query_first_row(client, &ask).await?.unwrap_or_default();
    let rows = row.into_iter().flatten().next().and_then(|rows| rows.parse().ok());
    Ok(rows.filter(|rows| *rows > SMALL))
}

/// Ends the engines of older programs before the schema is brought from version `found` to `wanted`; `Err` says why they
/// are still there. `is_asking`: whether they are asked to end, where they look at that.
pub(crate) async fn make_way(
    client: &Client,
    schema: &str,
    found: i64,
    wanted: i64,
    is_asking: bool,
) -> Result<Result<(), String>, Error> {
    let (schema, hint) = (quoted(schema), hint(schema));
    let ask = format!(
        "SELECT host || ' (pid ' || pid || ')' FROM {schema}.workers WHERE {} ORDER BY worker_id",
        live_workers(found)
    );
    let living = async || {
        let living: Vec<String> = query_rows(client, &ask).await?.into_iter().flatten().flatten().collect();
        Ok::<_, Error>((!living.is_empty()).then(|| list_names(living.iter().map(String::as_str))))
    };
    let Some(mut workers) = living().await? else { return Ok(Ok(())) };
    if found < FIRST_WITH_SHARD {
        return Ok(Err(format!(
            "workers of an older program use it and cannot be asked to end: {workers}; end them, then run stepfast db migrate"
        )));
    }
    if !is_asking {
        return Ok(Err(format!(
            "workers of an older program use it: {workers}; stepfast db migrate asks them to end, and brings the schema from \
             version {found} to {wanted}"
        )));
    }
    tracing::info!(workers, "workers of an older program are asked to end");
    client
        .batch_execute(&format!(
            "UPDATE {schema}.shard SET oldest_engine = greatest(oldest_engine, {wanted}); {hint}"
        ))
        .await?;
    let until = Instant::now() + WAY_WITHIN;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(200)).await;
        match living().await? {
            None => return Ok(Ok(())),
            Some(left) => workers = left,
        }
    }
    Ok(Err(format!(
        "workers of an older program were asked to end and are still there after {} s: {workers}; end them, then run \
         stepfast db migrate again",
        WAY_WITHIN.as_secs()
    )))
}

/// Returns the condition on rows of `workers` that live workers meet, in a schema of version `found`. Clients are no workers.
fn live_workers(found: i64) -> &'static str {
    if found < FIRST_WITH_CLIENTS {
        "lease_expires_at > clock_timestamp()"
    } else {
        "NOT is_client AND lease_expires_at > clock_timestamp()"
    }
}

/// Returns statements that fail while workers of an older program live: a script has no other way to find out.
fn guard(schema: &str, found: i64) -> String {
    let condition = live_workers(found);
    format!(
        "DO $$\nBEGIN\n    IF EXISTS (SELECT FROM {}.workers WHERE {condition}) THEN\n        RAISE EXCEPTION 'workers of an \
         older program use schema %', {} USING HINT = 'end them, then run this script again';\n    END IF;\nEND\n$$;\n",
        quoted(schema),
        literal(schema)
    )
}

/// The migrations that were missing, applied behind the lock. `None` if somebody has applied newer ones.
async fn locked(
    connector: &Connector,
    client: &Client,
    role: Option<&str>,
) -> Result<Option<Vec<String>>, Error> {
    let schema = connector.options().schema.as_str();
    let lock = xxh3_64(format!("stepfast schema {schema}").as_bytes()).cast_signed();
    let settings = connector.local_settings(Role::Migration);
    client
        .batch_execute(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; {settings} SELECT pg_advisory_xact_lock({lock})"
        ))
        .await?;
    let found = version_of(client, schema).await?.version();
    if found.is_some_and(|found| found > newest()) {
        client.batch_execute("ROLLBACK").await?;
        return Ok(None);
    }
    let sql = text(schema, is_there(client, schema).await?, found, role);
    if !sql.is_empty() {
        client.batch_execute(&sql).await?;
    }
    client.batch_execute(&format!("{}; COMMIT", hint(schema))).await?;
    Ok(Some(pending(found).iter().map(ToString::to_string).collect()))
}

/// Lets all engines on the schema look, clients among them, which seldom look by themselves.
fn hint(schema: &str) -> String {
    format!("SELECT pg_notify({}, 'migration anything')", literal(&hint_channel(schema)))
}

fn text(schema: &str, is_there: bool, found: Option<i64>, role: Option<&str>) -> String {
    let pending = pending(found);
    let mut sql =
        if pending.is_empty() { String::new() } else { applying(schema, is_there, found, &pending) };
    if let Some(role) = role {
        sql.push_str(&granting(schema, role));
    }
    sql
}
