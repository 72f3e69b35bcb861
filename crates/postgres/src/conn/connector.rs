//! Connections of the store: what they are for, and how they are set up for it.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use stepfast_core::store::{Durability, StoreError};
use tokio::runtime::Handle;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::conn::background::Background;
use crate::conn::dial::{Driver, Refusal, Target, Warnings, Wire, drive};
use crate::conn::options::{Pooling, PostgresOptions};
use crate::conn::pooler::query_first_row;
use crate::error::{DbError, store_error, db_error, unavailable_error};
use crate::quoting::{quoted, search_path};
use crate::schema::{VERSIONS, newest};

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
    /// Wake-up hints.
    Hints,
}

impl Role {
    pub(crate) const ALL: [Role; 5] = [Role::Lane, Role::Control, Role::Reader, Role::Migration, Role::Hints];

    /// The word for it, behind the application's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Lane => "lane",
            Role::Control => "control",
            Role::Reader => "reader",
            Role::Migration => "migration",
            Role::Hints => "hints",
        }
    }

    /// How long one statement may take, so that none hangs for ever; the COMMIT, which may wait for a standby, is
    /// not limited by this.
    ///
    /// A limit below what a slow disk takes for an honest statement would have the same flush begin again and
    /// again: that takes seconds at worst, so a minute is far from it. Looks come once a second, and one that
    /// takes longer than all leases is of no use. Lists may walk through large tables.
    fn statement_timeout(self) -> Duration {
        match self {
            Role::Lane => Duration::from_mins(1),
            Role::Control | Role::Hints => Duration::from_secs(30),
            Role::Reader => Duration::from_mins(5),
            Role::Migration => Duration::ZERO,
        }
    }
}

/// Which store a database holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its UUID, as text.
    pub store_id: String,
    /// The number of its shard.
    pub shard: u16,
}

/// Makes connections.
#[derive(Debug)]
pub(crate) struct Connector {
    target: Target,
    /// Where to listen, if that is another place.
    hint_target: Option<Target>,
    options: PostgresOptions,
    /// The store that was found first, which every later connection has to lead to.
    identity: OnceLock<Identity>,
    /// Whether the server had no connection left when it was asked last.
    is_full: AtomicBool,
}

impl Connector {
    /// A connector for the database at `url`.
    pub(crate) fn new(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let (target, options) = Target::new(url, options)?;
        let open = |reason: String| StoreError::Open { store: target.name().to_owned(), reason };
        if options.durability == Durability::None {
            return Err(open("durability `none` is for memory; use `full` or `relaxed`".into()));
        }
        let listen = match &options.listen {
            None => None,
            Some(url) => {
                // its own URL says how it is reached; nothing else of it counts
                let basis = PostgresOptions {
                    connect_timeout: options.connect_timeout,
                    lease: options.lease,
                    ..PostgresOptions::default()
                };
                let (listen, its) = Target::new(url, basis).map_err(|error| match error {
                    StoreError::Open { reason, .. } => open(format!("listen= in the URL: {reason}")),
                    error => error,
                })?;
                if its.listen.is_some() || its.pooling != Pooling::Session {
                    return Err(open(
                        "listen= in the URL names a server itself, without listen= and pooling=".into(),
                    ));
                }
                Some(listen)
            }
        };
        Ok(Self { target, hint_target: listen, options, identity: OnceLock::new(), is_full: AtomicBool::new(false) })
    }

    /// Reads which store `client` leads to. Returns an error if the URL names another store, if the store is another one than
    /// before, or if its schema is newer than this program. While a migration waits for older workers, no store is opened.
    /// A store that is open may still connect: its engine hands on what it runs.
    pub(crate) async fn check_identity(&self, client: &Client) -> Result<Identity, DbError> {
        let what = "reading the identity of the store";
        let schema = quoted(&self.options.schema);
        let ask = format!(
            "SELECT store_id, number, oldest_engine, (SELECT max(version) FROM {schema}.{VERSIONS}) \
             FROM {schema}.shard"
        );
        let row = query_first_row(client, &ask).await.map_err(|error| db_error(what, &error))?;
        let mut row = row.unwrap_or_default().into_iter().flatten();
        let found = (row.next(), row.next().and_then(|number| number.parse().ok()));
        let (Some(store_id), Some(shard)) = found else {
            return Err(StoreError::Corrupt(format!("table shard of {} has no row", self.name())).into());
        };
        let mut version = || row.next().and_then(|version| version.parse().ok()).unwrap_or_default();
        let (oldest, version): (i64, i64) = (version(), version());
        let version = if self.identity.get().is_some() { version } else { version.max(oldest) };
        if version > newest() {
            return Err(StoreError::NewerSchema { found: version, supported: newest() }.into());
        }
        let found = Identity { store_id, shard };
        let expected = self.options.store_id.as_ref().filter(|expected| **expected != found.store_id);
        if let Some(expected) = expected {
            let reason = format!("it is store {}, and store_id in the URL names {expected}", found.store_id);
            return Err(StoreError::Open { store: self.name().to_owned(), reason }.into());
        }
        let first = self.identity.get_or_init(|| found.clone());
        if *first != found {
            return Err(StoreError::Corrupt(format!(
                "{} has become another database: store {} of shard {} was there when the engine opened, and now it \
                 is store {} of shard {}; check where the URL leads to, and open the engine again",
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

    /// The database, for people: no password in it.
    pub(crate) fn name(&self) -> &str {
        self.target.name()
    }

    /// The store's options.
    pub(crate) fn options(&self) -> &PostgresOptions {
        &self.options
    }

    /// True if a connection of ours may be another one of the server's in each transaction.
    pub(crate) fn is_pooled(&self) -> bool {
        self.options.pooling == Pooling::Transaction
    }

    /// True if the server is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.target.is_local()
    }

    /// True if somebody can be heard: not through a proxy that takes the connection back.
    pub(crate) fn can_listen(&self) -> bool {
        !self.is_pooled() || self.hint_target.is_some()
    }

    /// A connection that `runtime` drives, set up for `role`.
    pub(crate) async fn connect(&self, runtime: &Handle, role: Role) -> Result<Wire, StoreError> {
        let wire = self.dial(runtime, role).await.map_err(|refusal| self.connect_failed(&refusal))?;
        self.set_up(&wire.client, role).await?;
        Ok(wire)
    }

    /// A refusal as what it means to whoever wants to use the connection.
    pub(crate) fn connect_failed(&self, refusal: &Refusal) -> StoreError {
        unreached(self.name(), refusal)
    }

    /// The same for the connection for wake-up hints, which may be to another place.
    pub(crate) fn hint_connect_failed(&self, refusal: &Refusal) -> StoreError {
        unreached(self.hint_target.as_ref().unwrap_or(&self.target).name(), refusal)
    }

    /// A connection that `runtime` drives, with nothing set yet.
    pub(crate) async fn dial(&self, runtime: &Handle, role: Role) -> Result<Wire, Refusal> {
        let (client, driver) = self.dial_target(&self.target, runtime, role).await?;
        let warnings = Arc::new(Warnings::default());
        runtime.spawn(drive(driver, warnings.clone()));
        Ok(Wire { client, warnings })
    }

    /// The same. While the server has no connection left, one is asked for again, as long as connecting may take.
    pub(crate) async fn dial_with_retry(&self, background: &Background, role: Role) -> Result<Wire, Refusal> {
        let (mut pause, last) = (Duration::from_millis(50), Duration::from_secs(1));
        let mut waited = Duration::ZERO;
        loop {
            match self.dial(background.runtime(), role).await {
                Err(refusal) if refusal.is_full() && waited < self.options.connect_timeout => {
                    background.sleep(jittered(pause)).await;
                    waited += pause;
                    pause = (pause * 2).min(last);
                }
                result => return result,
            }
        }
    }

    /// A connection for wake-up hints, with nothing set yet; the caller drives it in `runtime`.
    pub(crate) async fn dial_hints(&self, runtime: &Handle) -> Result<(Client, Driver), Refusal> {
        self.dial_target(self.hint_target.as_ref().unwrap_or(&self.target), runtime, Role::Hints).await
    }

    async fn dial_target(
        &self,
        target: &Target,
        runtime: &Handle,
        role: Role,
    ) -> Result<(Client, Driver), Refusal> {
        let name = format!("{} {}", self.options.application_name, role.name());
        let there = target.clone();
        // the socket belongs to the runtime in which it was opened
        let result = match runtime.spawn(async move { there.dial(&name).await }).await {
            Ok(result) => result,
            Err(_) => Err(Refusal {
                text: "the runtime that it belongs to has ended".into(),
                code: None,
                is_passing: false,
            }),
        };
        let is_full = result.as_ref().is_err_and(Refusal::is_full);
        if self.is_full.swap(is_full, Relaxed) != is_full {
            if let Err(refusal) = &result {
                tracing::warn!(
                    database = target.name(),
                    "no connection is left; waiting for one, nothing is lost: {}",
                    refusal.text
                );
            } else {
                tracing::info!(database = target.name(), "there are connections again");
            }
        }
        result
    }

    /// Sets a fresh connection up for `role`. Through a proxy, transactions bring their settings along.
    pub(crate) async fn set_up(&self, client: &Client, role: Role) -> Result<(), StoreError> {
        let what = "setting up a connection";
        let fail = |error: tokio_postgres::Error| store_error(what, &error);
        if !self.is_pooled() || (role == Role::Hints && self.hint_target.is_some()) {
            client.batch_execute(&self.session_settings(role)).await.map_err(fail)?;
        }
        if self.identity.get().is_some() && matches!(role, Role::Lane | Role::Control | Role::Reader) {
            self.check_identity(client).await.map_err(unavailable_error)?;
        }
        if role != Role::Lane || self.options.durability != Durability::Full {
            return Ok(());
        }
        let ask = "SELECT current_setting('synchronous_commit')";
        let ask = if self.is_pooled() {
            format!("BEGIN; {} {ask}; ROLLBACK", self.local_settings(role))
        } else {
            ask.to_owned()
        };
        let answer = client.simple_query(&ask).await.map_err(fail)?;
        // what stands before it answers with rows, too
        let set = answer.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        match set {
            Some("on" | "remote_apply") => Ok(()),
            _ => Err(not_flushed()),
        }
    }

    /// What sets up a connection for `role`.
    pub(crate) fn session_settings(&self, role: Role) -> String {
        let set = |(name, value): (&str, String)| format!("SET {name} TO {value};");
        self.values(role).into_iter().map(set).chain(no_memoize(role, false)).collect()
    }

    /// The same for the transaction that it begins.
    pub(crate) fn local_settings(&self, role: Role) -> String {
        let set = |(name, value): (&str, String)| format!("SET LOCAL {name} TO {value};");
        let begins = |name: &str| name.starts_with("default_transaction");
        let values = self.values(role).into_iter().filter(|(name, _)| !begins(name));
        values.map(set).chain(no_memoize(role, true)).collect()
    }

    fn values(&self, role: Role) -> Vec<(&'static str, String)> {
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
            ("statement_timeout", millis(role.statement_timeout())),
            ("client_min_messages", "warning".into()),
            ("synchronous_commit", if is_relaxed { "off" } else { "on" }.into()),
        ];
        // a look must return well within a lease, also when somebody holds what it wants to lock; and nobody
        // holds locks for longer than a lease when its process has stopped
        let (lock, idle) = match role {
            Role::Lane => (options.lock_timeout, options.lease * 2 / 3),
            Role::Control => (options.lease / 6, options.lease),
            // they lock nothing that others want, and only a reader's snapshot could stay
            Role::Reader | Role::Hints => (Duration::from_secs(10), Duration::from_mins(1)),
            Role::Migration => (Duration::ZERO, Duration::ZERO),
        };
        values.push(("lock_timeout", millis(lock)));
        values.push(("idle_in_transaction_session_timeout", millis(idle)));
        match role {
            // rows are found by key whatever the statistics say: a plan must not rot while tables grow
            Role::Lane | Role::Control => {
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
            Role::Reader => {
                values.push(("jit", "off".into()));
                values.push(("plan_cache_mode", "force_custom_plan".into()));
            }
            Role::Migration | Role::Hints => {}
        }
        values
    }
}

/// The error of a session that does not wait for its commits, although it was set up to.
pub(crate) fn not_flushed() -> StoreError {
    StoreError::Corrupt(
        "synchronous_commit of a session is not on, although it was set to on: commits would not be safe. A proxy that \
         pools transactions seems to stand before the server: add pooling=transaction to the URL"
            .into(),
    )
}

fn unreached(name: &str, refusal: &Refusal) -> StoreError {
    StoreError::Unavailable(format!("cannot connect to {name}: {}", refusal.text))
}

/// Keeps servers from remembering each row that they have looked up by its key, in case the key comes again: it never
/// does. Those before 14 do not, and know no setting for it.
fn no_memoize(role: Role, is_local: bool) -> Option<String> {
    matches!(role, Role::Lane | Role::Control).then(|| {
        format!(
            "SELECT set_config('enable_memoize', 'off', {is_local}) \
             WHERE current_setting('server_version_num')::integer >= 140000;"
        )
    })
}

/// A half to one and a half of `pause`, so that many do not come back at once.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64())
}
