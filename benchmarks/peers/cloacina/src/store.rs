//! The database of a measurement, and the settings of Cloacina's sessions in it.

use cloacina::database::BackendType;
use cloacina::runner::DefaultRunner;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Integer, Text};
use serde_json::{Value, json};

use crate::BoxError;

/// The levels of SQLite's setting `synchronous`, by their numbers.
const SYNCHRONOUS_LEVELS: [&str; 4] = ["off", "normal", "full", "extra"];

/// The database of a measurement.
pub struct TestDatabase {
    /// The database's URL.
    pub url: String,
    /// The URL of the server and the name of the database, if it was created.
    created: Option<(String, String)>,
}

impl TestDatabase {
    /// Creates a database on the Postgres server at `url`. Cloacina creates a file of SQLite by itself.
    pub fn create(url: &str) -> Result<Self, BoxError> {
        if url.starts_with("sqlite:") {
            return Ok(Self { url: url.to_owned(), created: None });
        }
        let name = format!("stepfast_peer_{}", uuid::Uuid::new_v4().simple());
        execute(url, &format!("CREATE DATABASE {name}"))?;
        let address = url.split('?').next().unwrap_or(url);
        let server = address.rsplit_once('/').map_or(address, |(server, _)| server);
        Ok(Self { url: format!("{server}/{name}"), created: Some((url.to_owned(), name)) })
    }

    /// Drops the database, if it was created.
    pub fn drop(self) -> Result<(), BoxError> {
        let Some((server, name)) = self.created else { return Ok(()) };
        execute(&server, &format!("DROP DATABASE {name} WITH (FORCE)"))
    }
}

/// Executes a statement in a session of its own.
fn execute(url: &str, statement: &str) -> Result<(), BoxError> {
    diesel::sql_query(statement).execute(&mut PgConnection::establish(url)?)?;
    Ok(())
}

/// The settings of the runner and of the callers.
pub struct Settings {
    pub scheduler_poll_ms: u128,
    pub status_poll_ms: u128,
    pub max_concurrent_tasks: usize,
    pub claiming: bool,
    pub recovery: bool,
}

/// Returns the store's kind and version, and the line of JSON about the measurement. Sessions of Cloacina's own pool are asked
/// for their durability.
pub async fn describe(runner: &DefaultRunner, settings: &Settings) -> Result<(String, Value), BoxError> {
    let (store, durability) = match runner.database().backend() {
        BackendType::Sqlite => {
            let connection = runner.database().get_sqlite_connection().await?;
            let read = connection.interact(|session| -> QueryResult<_> {
                let version: String = sql::<Text>("SELECT sqlite_version()").get_result(session)?;
                let journal: String = sql::<Text>("PRAGMA journal_mode").get_result(session)?;
                let level: i32 = sql::<Integer>("PRAGMA synchronous").get_result(session)?;
                Ok((version, journal, level))
            });
            let (version, journal, level) = read.await.map_err(|error| error.to_string())??;
            let level = SYNCHRONOUS_LEVELS.get(level as usize);
            (format!("SQLite {version}"), json!({ "journal_mode": journal, "synchronous": level }))
        }
        BackendType::Postgres => {
            let connection = runner.database().get_postgres_connection().await?;
            let read = connection.interact(|session| -> QueryResult<_> {
                let version: String = sql::<Text>("SHOW server_version").get_result(session)?;
                let fsync: String = sql::<Text>("SHOW fsync").get_result(session)?;
                let commit: String = sql::<Text>("SHOW synchronous_commit").get_result(session)?;
                Ok((version, fsync, commit))
            });
            let (version, fsync, commit) = read.await.map_err(|error| error.to_string())??;
            (format!("PostgreSQL {version}"), json!({ "fsync": fsync, "synchronous_commit": commit }))
        }
    };
    let about = json!({
        "peer": "cloacina",
        "experiment": "about",
        "version": cloacina_version(),
        "store": store,
        "durability": durability,
        "scheduler_poll_ms": settings.scheduler_poll_ms,
        "status_poll_ms": settings.status_poll_ms,
        "max_concurrent_tasks": settings.max_concurrent_tasks,
        "claiming": settings.claiming,
        "recovery": settings.recovery,
    });
    Ok((store, about))
}

/// Returns the version of Cloacina that Cargo.lock pins.
fn cloacina_version() -> Option<&'static str> {
    let (_, rest) = include_str!("../Cargo.lock").split_once("name = \"cloacina\"\nversion = \"")?;
    rest.split('"').next()
}
