//! Connections: how they are made, set up, and driven.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::try_join_all;
use stepfast_core::store::{Durability, StoreError};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls, Statement};

use crate::error::store_error;
use crate::options::PostgresOptions;
use crate::statements::Sql;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Flushes or claims of one lane.
    Lane,
    /// Registering and looking.
    Control,
    /// Loading and listing.
    Reader,
    /// Migrating: waits as long as it takes.
    Migration,
}

/// Makes connections.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    config: Config,
    options: PostgresOptions,
    name: String,
}

/// A connection with its prepared statements.
pub(crate) struct Session {
    /// The connection.
    pub client: Client,
    prepared: Vec<Option<Statement>>,
    /// Rows written or claimed since the plans were made, and how many of them make new plans worthwhile.
    rows: AtomicU64,
    rows_per_plan: AtomicU64,
}

/// Plans are made anew when this many rows were written, then twice as many, and so on, up to the last.
const ROWS_PER_PLAN: (u64, u64) = (32, 65_536);

impl Connector {
    /// A connector for the database at `url`.
    pub(crate) fn new(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let open = |reason: String| StoreError::Open { store: "the Postgres database".into(), reason };
        let mut config: Config = url.parse().map_err(|error| {
            open(format!(
                "the URL is not understood ({error}); it looks like postgres://user:password@host:5432/database"
            ))
        })?;
        if options.durability == Durability::None {
            return Err(open("durability `none` is for memory; use `full` or `relaxed`".into()));
        }
        if options.schema.is_empty() || options.schema.len() > 63 || options.schema.contains('\0') {
            return Err(open(format!("{:?} cannot be the name of a schema", options.schema)));
        }
        config.connect_timeout(options.connect_timeout);
        config.keepalives_idle(Duration::from_secs(10));
        config.tcp_user_timeout(options.lease);
        let name = describe(&config);
        Ok(Self { config, options, name })
    }

    /// The database, for people: no password in it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The store's options.
    pub(crate) fn options(&self) -> &PostgresOptions {
        &self.options
    }

    /// What the client library is configured with.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// A connection that `runtime` drives, set up for `role`.
    pub(crate) async fn connect(&self, runtime: &Handle, role: Role) -> Result<Client, StoreError> {
        let (client, _) = self.dial(runtime, role).await.map_err(|error| {
            StoreError::Unavailable(format!("cannot connect to {}: {}", self.name, chain(&error)))
        })?;
        if role == Role::Lane && self.options.durability == Durability::Full {
            let what = "reading back synchronous_commit";
            let row = client
                .query_one("SELECT current_setting('synchronous_commit')", &[])
                .await
                .map_err(|error| store_error(what, &error))?;
            let set: &str = row.try_get(0).map_err(|error| store_error(what, &error))?;
            if set == "off" {
                return Err(StoreError::Corrupt(format!(
                    "{} does not flush commits: synchronous_commit is off although it was set to on",
                    self.name
                )));
            }
        }
        Ok(client)
    }

    /// The same with the client library's own error, and with the task that drives the connection.
    pub(crate) async fn dial(
        &self,
        runtime: &Handle,
        role: Role,
    ) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let mut config = self.config.clone();
        config.application_name(match role {
            Role::Lane => "stepfast lane",
            Role::Control => "stepfast control",
            Role::Reader => "stepfast reader",
            Role::Migration => "stepfast migration",
        });
        let there = config.clone();
        // the socket belongs to the runtime in which it was opened
        let (client, connection) = match runtime.spawn(async move { there.connect(NoTls).await }).await {
            Ok(connected) => connected?,
            Err(_) => config.connect(NoTls).await?,
        };
        let driver = runtime.spawn(async move {
            // its errors reach whoever uses the client
            let _ = connection.await;
        });
        client.batch_execute(&self.settings(role)).await?;
        Ok((client, driver))
    }

    /// What sets up a connection for `role`.
    pub(crate) fn settings(&self, role: Role) -> String {
        let options = &self.options;
        let mut sql = format!(
            "SET search_path TO {}; SET default_transaction_isolation TO 'read committed'; \
             SET default_transaction_read_only TO off; SET statement_timeout TO 0; \
             SET client_min_messages TO warning; SET synchronous_commit TO {};",
            quoted(&options.schema),
            if options.durability == Durability::Relaxed { "off" } else { "on" },
        );
        let millis = |duration: Duration| duration.as_millis().clamp(1, 2_000_000_000);
        if matches!(role, Role::Lane | Role::Control) {
            // rows are found by key whatever the statistics say: a plan must not rot while tables grow
            sql.push_str(
                "SET plan_cache_mode TO force_generic_plan; SET enable_seqscan TO off; \
                 SET enable_bitmapscan TO off; SET enable_material TO off; SET enable_hashjoin TO off; \
                 SET enable_mergejoin TO off; SET jit TO off;",
            );
        }
        // a look must return well within a lease, also when somebody holds what it wants to lock; and nobody
        // holds locks for longer than a lease when its process has stopped
        let (lock, idle) = match role {
            Role::Lane => (options.lock_timeout, options.lease * 2 / 3),
            _ => (options.lease / 6, options.lease),
        };
        match role {
            Role::Lane | Role::Control => {
                let _ = write!(
                    sql,
                    "SET lock_timeout TO {}; SET idle_in_transaction_session_timeout TO {};",
                    millis(lock),
                    millis(idle),
                );
            }
            Role::Reader => sql.push_str("SET jit TO off; SET plan_cache_mode TO force_custom_plan;"),
            Role::Migration => sql.push_str("SET lock_timeout TO 0;"),
        }
        sql
    }
}

impl Session {
    /// A connection driven by `runtime`, with the statements that it will need.
    pub(crate) async fn open(
        connector: &Connector,
        runtime: &Handle,
        role: Role,
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let client = connector.connect(runtime, role).await?;
        let mut prepared = vec![None; Sql::ALL.len()];
        let texts = statements.iter().map(|sql| client.prepare(sql.text()));
        let all = try_join_all(texts).await.map_err(|error| store_error("preparing statements", &error))?;
        for (&sql, statement) in statements.iter().zip(all) {
            prepared[sql as usize] = Some(statement);
        }
        let (rows, rows_per_plan) = (AtomicU64::new(0), AtomicU64::new(ROWS_PER_PLAN.0));
        Ok(Self { client, prepared, rows, rows_per_plan })
    }

    /// A prepared statement; preparing it was asked for when the session was opened.
    pub(crate) fn statement(&self, sql: Sql) -> Result<&Statement, StoreError> {
        self.prepared[sql as usize]
            .as_ref()
            .ok_or_else(|| StoreError::Unavailable(format!("statement {sql:?} is not prepared here")))
    }

    /// Counts rows that are about to be written. True if the plans are of a time when the tables were much
    /// smaller: a plan that is kept for good may walk through a table that was nearly empty when it was made.
    pub(crate) fn needs_new_plans(&self, rows: usize) -> bool {
        let rows = self.rows.fetch_add(rows as u64, Relaxed) + rows as u64;
        let limit = self.rows_per_plan.load(Relaxed);
        if rows < limit {
            return false;
        }
        self.rows.store(0, Relaxed);
        self.rows_per_plan.store((limit * 2).min(ROWS_PER_PLAN.1), Relaxed);
        true
    }

    /// True if it can no longer be used.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

/// `identifier` as the server reads it back unchanged.
pub(crate) fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

fn describe(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".into(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    format!("postgres://{user}@{host}:{port}/{database}")
}
