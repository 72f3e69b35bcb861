//! [`PostgresOptions`]: how a store uses its database.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::clock::Clock;
use stepfast_core::store::Durability;

/// How a [`PostgresStore`](crate::PostgresStore) uses its database. The defaults are good.
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
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// True to refuse a database without our schema, which would be made otherwise.
    pub must_exist: bool,
    /// Most connections for loads and lists.
    pub readers: usize,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "stepfast".into(),
            durability: Durability::Full,
            clock: None,
            lock_timeout: Duration::from_millis(250),
            lease: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(10),
            must_exist: false,
            readers: 4,
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
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("schema", &self.schema)
            .field("durability", &self.durability)
            .field("has_clock", &self.clock.is_some())
            .field("lock_timeout", &self.lock_timeout)
            .field("lease", &self.lease)
            .field("connect_timeout", &self.connect_timeout)
            .field("must_exist", &self.must_exist)
            .field("readers", &self.readers)
            .finish()
    }
}
