//! [`Connector`]: opens the store's connections and configures each for its purpose.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use stepfast_core::store::{Durability, StoreError};
use tokio::runtime::Handle;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::conn::background::BackgroundRuntime;
use crate::conn::dial::{ConnectError, ConnectionDriver, DialTarget, DialedClient, ServerWarnings, drive};
use crate::conn::options::{Pooling, PostgresOptions};
use crate::conn::pooler::query_first_row;
use crate::error::{DbError, db_error, store_error, unavailable_error};
use crate::quoting::{quote_identifier, search_path};
use crate::schema::{VERSION_TABLE, newest_version};

/// The purpose of a connection, which decides its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Flushes or claims of one lane.
    Lane,
    /// Registrations and heartbeats.
    Control,
    /// Loads and lists.
    Reader,
    /// Migrations, which have no time limits.
    Migration,
    /// Hints from and to other processes.
    Hints,
}

impl Purpose {
    pub(crate) const ALL: [Purpose; 5] =
        [Purpose::Lane, Purpose::Control, Purpose::Reader, Purpose::Migration, Purpose::Hints];

    /// Returns the purpose's name, which follows the application name in `pg_stat_activity`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Purpose::Lane => "lane",
            Purpose::Control => "control",
            Purpose::Reader => "reader",
            Purpose::Migration => "migration",
            Purpose::Hints => "hints",
        }
    }

    /// Returns the time limit of one statement, so that no statement hangs forever. The limit does not apply to COMMIT,
    /// which may wait for a standby.
    ///
    /// If a valid statement on a slow disk took longer than the limit, the same flush would be repeated forever. Such a
    /// statement takes seconds at worst, so a minute leaves a wide margin. Heartbeats are sent once a second, and a
    /// heartbeat that takes longer than a lease is useless. Lists may scan large tables.
    fn statement_timeout(self) -> Duration {
        match self {
            Purpose::Lane => Duration::from_mins(1),
            Purpose::Control | Purpose::Hints => Duration::from_secs(30),
            Purpose::Reader => Duration::from_mins(5),
            Purpose::Migration => Duration::ZERO,
        }
    }
}

/// The identity of the store in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreIdentity {
    /// The store's UUID as text.
    pub store_id: String,
    /// The number of the store's shard.
    pub shard: u16,
}

/// Opens connections to one database.
#[derive(Debug)]
pub(crate) struct Connector {
    target: DialTarget,
    /// The target of the connection for hints, if `listen=` in the URL names one.
    hint_target: Option<DialTarget>,
    options: PostgresOptions,
    /// The identity that the first connection found. Every later connection must find the same identity.
    identity: OnceLock<StoreIdentity>,
    /// Whether the last attempt to connect failed because the server had no free connection.
    is_full: AtomicBool,
}

impl Connector {
    /// Creates a connector for the database at `url`.
    pub(crate) fn new(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let (target, options) = DialTarget::new(url, options)?;
        let open = |reason: String| StoreError::Open { store: target.name().to_owned(), reason };
        if options.durability == Durability::None {
            return Err(open(
                "durability `none` is only for stores in memory; use `full` or `relaxed`".into(),
            ));
        }
        let hint_target = match &options.listen {
            None => None,
            Some(url) => {
                // only the options for connecting are taken from this URL
                let basis = PostgresOptions {
                    connect_timeout: options.connect_timeout,
                    lease: options.lease,
                    ..PostgresOptions::default()
                };
                let (target, parsed) = DialTarget::new(url, basis).map_err(|error| match error {
                    StoreError::Open { reason, .. } => open(format!("listen= in the URL: {reason}")),
                    error => error,
                })?;
                if parsed.listen.is_some() || parsed.pooling != Pooling::Session {
                    return Err(open(
                        "listen= in the URL must be the URL of the server itself, without listen= and pooling=".into(),
                    ));
                }
                Some(target)
            }
        };
        Ok(Self { target, hint_target, options, identity: OnceLock::new(), is_full: AtomicBool::new(false) })
    }

    /// Reads the identity of the store that `client` leads to. Returns an error if the URL names another store, if an
    /// earlier connection found another store, or if the schema is newer than this program. While a migration waits for
    /// older workers to stop, no store can be opened. Stores that are open already may still connect, because their
    /// engines have to requeue their running executions.
    pub(crate) async fn check_identity(&self, client: &Client) -> Result<StoreIdentity, DbError> {
        let action = "reading the identity of the store";
        let schema = quote_identifier(&self.options.schema);
        let sql = format!(
            "SELECT store_id, number, oldest_engine, (SELECT max(version) FROM {schema}.{VERSION_TABLE}) \
             FROM {schema}.shard"
        );
        let row = query_first_row(client, &sql).await.map_err(|error| db_error(action, &error))?;
        let mut row = row.unwrap_or_default().into_iter().flatten();
        let found = (row.next(), row.next().and_then(|number| number.parse().ok()));
        let (Some(store_id), Some(shard)) = found else {
            return Err(StoreError::Corrupt(format!("table shard of {} has no row", self.name())).into());
        };
        let mut version = || row.next().and_then(|version| version.parse().ok()).unwrap_or_default();
        let (oldest, version): (i64, i64) = (version(), version());
        let version = if self.identity.get().is_some() { version } else { version.max(oldest) };
        if version > newest_version() {
            return Err(StoreError::NewerSchema { found: version, supported: newest_version() }.into());
        }
        let found = StoreIdentity { store_id, shard };
        let expected = self.options.store_id.as_ref().filter(|expected| **expected != found.store_id);
        if let Some(expected) = expected {
            let reason = format!(
                "the database holds store {}, but store_id in the URL names {expected}",
                found.store_id
            );
            return Err(StoreError::Open { store: self.name().to_owned(), reason }.into());
        }
        let first = self.identity.get_or_init(|| found.clone());
        if *first != found {
            return Err(StoreError::Corrupt(format!(
                "{} is now another database: it held store {} of shard {} when the engine opened, and now holds \
                 store {} of shard {}; check where the URL leads to, and open the engine again",
                self.name(),
                first.store_id,
                first.shard,
                found.store_id,
                found.shard
            ))
            .into());
        }
        Ok(found)
    }

    /// Returns the database's URL for messages, without the password.
    pub(crate) fn name(&self) -> &str {
        self.target.name()
    }

    /// Returns the store's options.
    pub(crate) fn options(&self) -> &PostgresOptions {
        &self.options
    }

    /// Whether each transaction may run on another server connection.
    pub(crate) fn is_pooled(&self) -> bool {
        self.options.pooling == Pooling::Transaction
    }

    /// Whether the server is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.target.is_local()
    }

    /// Whether hints can be received. A proxy that pools transactions does not support LISTEN.
    pub(crate) fn can_listen(&self) -> bool {
        !self.is_pooled() || self.hint_target.is_some()
    }

    /// Opens a connection that `runtime` drives, and configures it for `purpose`.
    pub(crate) async fn connect(
        &self,
        runtime: &Handle,
        purpose: Purpose,
    ) -> Result<DialedClient, StoreError> {
        let dialed = self.dial(runtime, purpose).await.map_err(|error| self.connect_failed(&error))?;
        self.set_up(&dialed.client, purpose).await?;
        Ok(dialed)
    }

    /// Returns the store's error for a failed connection.
    pub(crate) fn connect_failed(&self, error: &ConnectError) -> StoreError {
        unreachable_error(self.name(), error)
    }

    /// Returns the store's error for a failed connection for hints, which may have its own target.
    pub(crate) fn hint_connect_failed(&self, error: &ConnectError) -> StoreError {
        unreachable_error(self.hint_target.as_ref().unwrap_or(&self.target).name(), error)
    }

    /// Opens a connection that `runtime` drives, without configuring it.
    pub(crate) async fn dial(
        &self,
        runtime: &Handle,
        purpose: Purpose,
    ) -> Result<DialedClient, ConnectError> {
        let (client, driver) = self.dial_target(&self.target, runtime, purpose).await?;
        let warnings = Arc::new(ServerWarnings::default());
        runtime.spawn(drive(driver, warnings.clone()));
        Ok(DialedClient { client, warnings })
    }

    /// Opens a connection like [`dial`](Self::dial), but retries while the server has no free connection, for at most
    /// the connect timeout.
    pub(crate) async fn dial_with_retry(
        &self,
        background: &BackgroundRuntime,
        purpose: Purpose,
    ) -> Result<DialedClient, ConnectError> {
        let (mut pause, max_pause) = (Duration::from_millis(50), Duration::from_secs(1));
        let mut waited = Duration::ZERO;
        loop {
            match self.dial(background.runtime(), purpose).await {
                Err(error) if error.is_full() && waited < self.options.connect_timeout => {
                    background.sleep(with_jitter(pause)).await;
                    waited += pause;
                    pause = (pause * 2).min(max_pause);
                }
                result => return result,
            }
        }
    }

    /// Opens the connection for hints, without configuring it. The caller drives the connection in `runtime`.
    pub(crate) async fn dial_hints(
        &self,
        runtime: &Handle,
    ) -> Result<(Client, ConnectionDriver), ConnectError> {
        self.dial_target(self.hint_target.as_ref().unwrap_or(&self.target), runtime, Purpose::Hints).await
    }

    async fn dial_target(
        &self,
        target: &DialTarget,
        runtime: &Handle,
        purpose: Purpose,
    ) -> Result<(Client, ConnectionDriver), ConnectError> {
        let name = format!("{} {}", self.options.application_name, purpose.name());
        let dialed = target.clone();
        // a socket belongs to the runtime in which it was opened
        let result = match runtime.spawn(async move { dialed.dial(&name).await }).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError {
                message: "the runtime of the connection has shut down".into(),
                code: None,
                is_transient: false,
            }),
        };
        let is_full = result.as_ref().is_err_and(ConnectError::is_full);
        if self.is_full.swap(is_full, Relaxed) != is_full {
            if let Err(error) = &result {
                tracing::warn!(
                    database = target.name(),
                    "the server has no free connection; waiting for one, no data is lost: {}",
                    error.message
                );
            } else {
                tracing::info!(database = target.name(), "the server has free connections again");
            }
        }
        result
    }

    /// Configures a new connection for `purpose`. Through a proxy that pools transactions, each transaction sends its own
    /// settings instead.
    pub(crate) async fn set_up(&self, client: &Client, purpose: Purpose) -> Result<(), StoreError> {
        let action = "setting up a connection";
        let fail = |error: tokio_postgres::Error| store_error(action, &error);
        if !self.is_pooled() || (purpose == Purpose::Hints && self.hint_target.is_some()) {
            client.batch_execute(&self.session_settings(purpose)).await.map_err(fail)?;
        }
        if self.identity.get().is_some()
            && matches!(purpose, Purpose::Lane | Purpose::Control | Purpose::Reader)
        {
            self.check_identity(client).await.map_err(unavailable_error)?;
        }
        if purpose != Purpose::Lane || self.options.durability != Durability::Full {
            return Ok(());
        }
        let sql = "SELECT current_setting('synchronous_commit')";
        let sql = if self.is_pooled() {
            format!("BEGIN; {} {sql}; ROLLBACK", self.transaction_settings(purpose))
        } else {
            sql.to_owned()
        };
        let messages = client.simple_query(&sql).await.map_err(fail)?;
        // the statements that configure the session return rows, too, so the last row counts
        let set = messages.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        match set {
            Some("on" | "remote_apply") => Ok(()),
            _ => Err(commits_not_durable()),
        }
    }

    /// Returns the statements that configure a connection for `purpose`.
    pub(crate) fn session_settings(&self, purpose: Purpose) -> String {
        let set = |(name, value): (&str, String)| format!("SET {name} TO {value};");
        self.setting_values(purpose).into_iter().map(set).chain(disable_memoize(purpose, false)).collect()
    }

    /// Returns the statements that configure a transaction for `purpose`, at its beginning.
    pub(crate) fn transaction_settings(&self, purpose: Purpose) -> String {
        let set = |(name, value): (&str, String)| format!("SET LOCAL {name} TO {value};");
        let is_default = |name: &str| name.starts_with("default_transaction");
        let values = self.setting_values(purpose).into_iter().filter(|(name, _)| !is_default(name));
        values.map(set).chain(disable_memoize(purpose, true)).collect()
    }

    fn setting_values(&self, purpose: Purpose) -> Vec<(&'static str, String)> {
        let options = &self.options;
        let millis = |duration: Duration| match duration {
            Duration::ZERO => "0".to_owned(),
            duration => duration.as_millis().clamp(1, 2_000_000_000).to_string(),
        };
        let is_relaxed = options.durability == Durability::Relaxed;
        let mut values = vec![
            ("search_path", search_path(&options.schema)),
            ("default_transaction_isolation", "'read committed'".into()),
            ("default_transaction_read_only", "off".into()),
            ("statement_timeout", millis(purpose.statement_timeout())),
            ("client_min_messages", "warning".into()),
            ("synchronous_commit", if is_relaxed { "off" } else { "on" }.into()),
        ];
        // A heartbeat must return well within a lease, even when another transaction holds a lock that the heartbeat
        // needs. A process that has stopped must not hold locks for longer than a lease.
        let (lock, idle) = match purpose {
            Purpose::Lane => (options.lock_timeout, options.lease * 2 / 3),
            Purpose::Control => (options.lease / 6, options.lease),
            // these connections take no locks that other transactions need; only a reader's snapshot could stay open
            Purpose::Reader | Purpose::Hints => (Duration::from_secs(10), Duration::from_mins(1)),
            Purpose::Migration => (Duration::ZERO, Duration::ZERO),
        };
        values.push(("lock_timeout", millis(lock)));
        values.push(("idle_in_transaction_session_timeout", millis(idle)));
        match purpose {
            // plans find rows by key, whatever the statistics say, because a plan must stay good while tables grow
            Purpose::Lane | Purpose::Control => {
                values.push(("plan_cache_mode", "force_generic_plan".into()));
                let off = [
                    "enable_seqscan",
                    "enable_bitmapscan",
                    "enable_material",
                    "enable_hashjoin",
                    "enable_mergejoin",
                ];
                values.extend(off.map(|method| (method, "off".to_owned())));
                values.push(("jit", "off".into()));
            }
            Purpose::Reader => {
                values.push(("jit", "off".into()));
                values.push(("plan_cache_mode", "force_custom_plan".into()));
            }
            Purpose::Migration | Purpose::Hints => {}
        }
        values
    }
}

/// Returns the error of a session whose commits do not wait until the server has flushed its log, although the session
/// was configured to wait.
pub(crate) fn commits_not_durable() -> StoreError {
    StoreError::Corrupt(
        "synchronous_commit of a session is not on, although it was set to on: commits would not be durable. A proxy that \
         pools transactions seems to be in front of the server: add pooling=transaction to the URL"
            .into(),
    )
}

fn unreachable_error(name: &str, error: &ConnectError) -> StoreError {
    StoreError::Unavailable(format!("cannot connect to {name}: {}", error.message))
}

/// Returns a statement that turns off `enable_memoize`; `None` for purposes that do not need it.
///
/// A memoize plan caches the rows that it reads by key. Here the cache is useless, because no key is read twice. Servers
/// before Postgres 14 do not have this setting.
fn disable_memoize(purpose: Purpose, is_local: bool) -> Option<String> {
    matches!(purpose, Purpose::Lane | Purpose::Control).then(|| {
        format!(
            "SELECT set_config('enable_memoize', 'off', {is_local}) \
             WHERE current_setting('server_version_num')::integer >= 140000;"
        )
    })
}

/// Returns a random duration from 0.5 to 1.5 times `pause`, so that many processes do not retry at once.
pub(crate) fn with_jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64())
}
