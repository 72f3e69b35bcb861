//! [`PostgresOptions`]: how a store uses its database.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::clock::Clock;
use stepfast_core::store::Durability;

use crate::conn::tls::{SslMode, Tls};

/// The schema, unless the URL names another.
pub(crate) const DEFAULT_SCHEMA: &str = "stepfast";

/// What stands between the store and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Nothing, or a proxy that lends a connection of the server for as long as ours lives.
    #[default]
    Session,
    /// A proxy that lends a connection of the server for one transaction, as pgbouncer in `pool_mode=transaction`.
    Transaction,
}

/// How a [`PostgresStore`](crate::PostgresStore) uses its database. The defaults are good. What the URL says about
/// the same thing wins.
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The schema that holds all tables; made if it is not there.
    pub schema: String,
    /// `Full`: an acknowledgement waits until the server has flushed. `Relaxed`: it does not, and a crash of
    /// the server may take back the last moments.
    pub durability: Durability,
    /// Replaces the server's clock: for tests.
    pub clock: Option<Arc<dyn Clock>>,
    /// How long an item waits for a foreign transaction before its flush is given up as blocked.
    pub lock_timeout: Duration,
    /// How long a worker counts as alive without renewing.
    pub lease: Duration,
    /// The identity that the store must have, as the text of a UUID: another database is refused. `stepfast db check`
    /// shows it.
    pub store_id: Option<String>,
    /// How long connecting may take, and how long a load or list waits for a connection.
    pub connect_timeout: Duration,
    /// True to refuse a database without our schema, which would be made otherwise.
    pub must_exist: bool,
    /// Most connections for loads and lists.
    pub readers: usize,
    /// What the names of connections begin with, as `pg_stat_activity` shows them: `stepfast lane`.
    pub application_name: String,
    /// A proxy in between.
    pub pooling: Pooling,
    /// URL for wake-up hints that goes to the server itself, where the other one goes to a proxy that lends
    /// connections for transactions.
    pub listen: Option<String>,
    pub(crate) tls: Tls,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: DEFAULT_SCHEMA.into(),
            durability: Durability::Full,
            clock: None,
            lock_timeout: Duration::from_millis(250),
            lease: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(10),
            must_exist: false,
            store_id: None,
            readers: 4,
            application_name: "stepfast".into(),
            pooling: Pooling::Session,
            listen: None,
            tls: Tls::default(),
        }
    }
}

impl PostgresOptions {
    /// The same options in another schema.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The same options with another durability.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The same options, which refuse or allow that the schema is made.
    #[must_use]
    pub fn must_exist(mut self, must_exist: bool) -> Self {
        self.must_exist = must_exist;
        self
    }

    /// The same options with a clock that replaces the server's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The same options with another bound on waiting for foreign transactions.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// The same options with another lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The same options with another bound on connecting.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The same options with another number of connections for loads and lists (at least one).
    #[must_use]
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers;
        self
    }

    /// The same options with another beginning of the names of connections, of 1 to 48 bytes.
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = name.into();
        self
    }

    /// The same options for another kind of proxy in between.
    #[must_use]
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// The same options with a direct URL for wake-up hints.
    #[must_use]
    pub fn listen(mut self, url: impl Into<String>) -> Self {
        self.listen = Some(url.into());
        self
    }

    /// The same options with another way to encrypt. The default is `prefer`, as in libpq.
    #[must_use]
    pub fn ssl_mode(mut self, mode: SslMode) -> Self {
        self.tls.mode = Some(mode);
        self
    }

    /// The same options with a PEM file of root certificates to trust, or `system` for those of the system.
    #[must_use]
    pub fn ssl_root_cert(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.root_cert = Some(file.into());
        self
    }

    /// The same options with PEM files of a certificate that is shown to the server, and of its key.
    #[must_use]
    pub fn ssl_cert(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.cert = Some(certificate.into());
        self.tls.key = Some(key.into());
        self
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("schema", &self.schema)
            .field("store_id", &self.store_id)
            .field("durability", &self.durability)
            .field("has_clock", &self.clock.is_some())
            .field("lock_timeout", &self.lock_timeout)
            .field("lease", &self.lease)
            .field("connect_timeout", &self.connect_timeout)
            .field("must_exist", &self.must_exist)
            .field("readers", &self.readers)
            .field("application_name", &self.application_name)
            .field("pooling", &self.pooling)
            // it may hold a password
            .field("has_listen", &self.listen.is_some())
            .field("tls", &self.tls)
            .finish()
    }
}
