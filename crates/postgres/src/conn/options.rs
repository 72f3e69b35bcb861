//! [`PostgresOptions`]: the options of a store.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::clock::Clock;
use stepfast_core::store::Durability;

use crate::conn::tls::{SslMode, TlsOptions};

/// The default schema.
pub(crate) const DEFAULT_SCHEMA: &str = "stepfast";

/// The kind of proxy between the store and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pooling {
    /// No proxy, or one that assigns a server connection per client connection.
    #[default]
    Session,
    /// A proxy that assigns a server connection per transaction, such as pgbouncer with `pool_mode=transaction`.
    Transaction,
}

/// Options of a [`PostgresStore`](crate::PostgresStore). The defaults suit most programs. Options in the URL take
/// precedence.
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The schema with all tables of the store. The store creates the schema if it does not exist.
    pub schema: String,
    /// The durability of acknowledgements. With `Full`, an acknowledgement waits until the server has flushed its log.
    /// With `Relaxed`, an acknowledgement does not wait, and a crash of the server may lose the last moments.
    pub durability: Durability,
    /// A clock that replaces the server's, for tests.
    pub clock: Option<Arc<dyn Clock>>,
    /// The maximum time that a Write may wait for a lock of another transaction. After that time its flush fails as
    /// blocked.
    pub lock_timeout: Duration,
    /// The time for which a worker counts as alive without a renewal.
    pub lease: Duration,
    /// The required identity of the store, the text of a UUID. A database with another identity is rejected. `None`
    /// accepts any identity. `stepfast db check` shows the identity.
    pub store_id: Option<String>,
    /// The time limit for connecting, and the time that a load or list waits for a connection.
    pub connect_timeout: Duration,
    /// Whether a database without the schema, or with an older version of it, is rejected. By default the schema is
    /// created or migrated.
    pub must_exist: bool,
    /// The maximum number of connections for loads and lists.
    pub readers: usize,
    /// The first part of the names of connections, as `pg_stat_activity` shows them, for example in `stepfast lane`.
    pub application_name: String,
    /// The kind of proxy between the store and the server.
    pub pooling: Pooling,
    /// The URL of the server itself, for the connection that receives hints, if the store's URL leads to a proxy that
    /// pools transactions.
    pub listen: Option<String>,
    pub(crate) tls: TlsOptions,
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
            tls: TlsOptions::default(),
        }
    }
}

impl PostgresOptions {
    /// Sets the schema with all tables of the store.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets the durability of acknowledgements.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets whether a database without the schema, or with an older version of it, is rejected.
    #[must_use]
    pub fn must_exist(mut self, must_exist: bool) -> Self {
        self.must_exist = must_exist;
        self
    }

    /// Sets a clock that replaces the server's, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the maximum time that a Write may wait for a lock of another transaction.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Sets the time for which a worker counts as alive without a renewal.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the time limit for connecting.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the maximum number of connections for loads and lists. The minimum is one.
    #[must_use]
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers;
        self
    }

    /// Sets the first part of the names of connections, of 1 to 48 bytes.
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = name.into();
        self
    }

    /// Sets the kind of proxy between the store and the server.
    #[must_use]
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// Sets the URL of the server itself, for the connection that receives hints.
    #[must_use]
    pub fn listen(mut self, url: impl Into<String>) -> Self {
        self.listen = Some(url.into());
        self
    }

    /// Sets the encryption mode. The default is `prefer`, as in libpq.
    #[must_use]
    pub fn ssl_mode(mut self, mode: SslMode) -> Self {
        self.tls.mode = Some(mode);
        self
    }

    /// Sets a PEM file of root certificates to trust, or `system` for the certificates of the system.
    #[must_use]
    pub fn ssl_root_cert(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.root_cert = Some(file.into());
        self
    }

    /// Sets the PEM files of the client certificate that is sent to the server, and of its key.
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
            // the URL may contain a password
            .field("has_listen", &self.listen.is_some())
            .field("tls", &self.tls)
            .finish()
    }
}
