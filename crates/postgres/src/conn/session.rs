//! [`Session`]: a connection, and how statements are sent on it.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use futures_util::future::try_join_all;
use stepfast_core::store::StoreError;
use tokio::runtime::Handle;
use tokio_postgres::{Client, Statement};

use crate::conn::connector::{Connector, Role};
use crate::conn::dial::{Warnings, Wire};
use crate::conn::options::Pooling;
use crate::conn::statements::Sql;
use crate::error::store_error;

/// Where a pipeline begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A whole transaction.
    Whole,
    /// A whole transaction that waits only briefly for other people's locks.
    WholeBriefly,
    /// Begins one and leaves it open.
    Begin,
    /// Begins one that waits only briefly for other people's locks.
    BeginBriefly,
    /// Begins one that reads, and sees the database as it was at one moment.
    BeginSnapshot,
    /// Goes on in one.
    Middle,
    /// Goes on in one and commits it.
    End,
    /// Statements on their own.
    Apart,
}

impl Part {
    /// The statement that begins the transaction, if it begins here, and what comes after the settings.
    pub(crate) fn begin(self) -> Option<(&'static str, &'static str)> {
        match self {
            Part::Whole | Part::Begin => Some(("BEGIN", "")),
            Part::WholeBriefly | Part::BeginBriefly => Some(("BEGIN", "SET LOCAL lock_timeout = 10")),
            Part::BeginSnapshot => Some(("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", "")),
            Part::Middle | Part::End | Part::Apart => None,
        }
    }

    pub(crate) fn commits(self) -> bool {
        matches!(self, Part::Whole | Part::WholeBriefly | Part::End)
    }
}

/// A connection of the store.
pub(crate) struct Session {
    /// The connection.
    pub client: Client,
    warnings: Arc<Warnings>,
    way: Way,
    /// What the server has reported on it leaves its state in doubt.
    is_given_up: AtomicBool,
    /// Rows written or claimed since the plans were made, and how many of them make new plans worthwhile.
    rows: AtomicU64,
    rows_per_plan: AtomicU64,
}

/// How statements are sent.
enum Way {
    /// The connection is the server's: its settings were set when it was made, and statements are prepared.
    Prepared(Vec<Option<Statement>>),
    /// A proxy lends another connection of the server for each transaction: it has to bring its settings along,
    /// and statements have no name by which the next transaction could find them.
    Unnamed { settings: String },
}

/// How a transaction begins where the defaults may be anybody's.
const PLAIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// Plans are made anew when this many rows were written, then twice as many, and so on, up to the last.
const ROWS_PER_PLAN: (u64, u64) = (32, 65_536);

impl Session {
    /// A connection driven by `runtime`, with the statements that it will need.
    pub(crate) async fn open(
        connector: &Connector,
        runtime: &Handle,
        role: Role,
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let wire = connector.connect(runtime, role).await?;
        Self::with(connector, wire, role, statements).await
    }

    /// The same on a connection that is there and set up for `role`.
    pub(crate) async fn with(
        connector: &Connector,
        Wire { client, warnings }: Wire,
        role: Role,
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let way = match connector.options().pooling {
            Pooling::Transaction => Way::Unnamed { settings: connector.local_settings(role) },
            Pooling::Session => {
                let mut prepared = vec![None; Sql::ALL.len()];
                let texts = statements.iter().map(|sql| client.prepare(sql.text()));
                let all =
                    try_join_all(texts).await.map_err(|error| store_error("preparing statements", &error))?;
                for (&sql, statement) in statements.iter().zip(all) {
                    prepared[sql as usize] = Some(statement);
                }
                Way::Prepared(prepared)
            }
        };
        let (rows, rows_per_plan) = (AtomicU64::new(0), AtomicU64::new(ROWS_PER_PLAN.0));
        Ok(Self { client, warnings, way, is_given_up: AtomicBool::new(false), rows, rows_per_plan })
    }

    /// A prepared statement; preparing it was asked for when the session was opened. `None` where statements
    /// have no names.
    pub(crate) fn statement(&self, sql: Sql) -> Result<Option<&Statement>, StoreError> {
        match &self.way {
            Way::Unnamed { .. } => Ok(None),
            Way::Prepared(prepared) => match &prepared[sql as usize] {
                Some(statement) => Ok(Some(statement)),
                None => Err(StoreError::Unavailable(format!("statement {sql:?} is not prepared here"))),
            },
        }
    }

    /// What begins the transaction of a part, if one begins here.
    pub(crate) fn begin(&self, part: Part) -> Option<Cow<'static, str>> {
        match (&self.way, part.begin()) {
            (Way::Prepared(_), begin) => begin.map(|(begin, then)| match then {
                "" => Cow::Borrowed(begin),
                then => Cow::Owned(format!("{begin}; {then}")),
            }),
            (Way::Unnamed { .. }, None) if part != Part::Apart => None,
            (Way::Unnamed { settings }, begin) => {
                let (begin, then) = match begin {
                    None | Some(("BEGIN", "")) => (PLAIN, ""),
                    Some(("BEGIN", then)) => (PLAIN, then),
                    Some(other) => other,
                };
                Some(Cow::Owned(format!("{begin}; {settings}{then}")))
            }
        }
    }

    /// True if the part is a transaction of its own here, which a failure leaves open.
    pub(crate) fn wraps(&self, part: Part) -> bool {
        part == Part::Apart && matches!(self.way, Way::Unnamed { .. })
    }

    /// Counts rows that are about to be written. True if the plans are of a time when the tables were much
    /// smaller: a plan that is kept for good may walk through a table that was nearly empty when it was made.
    pub(crate) fn needs_new_plans(&self, rows: usize) -> bool {
        if matches!(self.way, Way::Unnamed { .. }) {
            // each is planned when it is sent
            return false;
        }
        let rows = self.rows.fetch_add(rows as u64, Relaxed) + rows as u64;
        let limit = self.rows_per_plan.load(Relaxed);
        if rows < limit {
            return false;
        }
        self.rows.store(0, Relaxed);
        self.rows_per_plan.store((limit * 2).min(ROWS_PER_PLAN.1), Relaxed);
        true
    }

    /// True if a commit since the last call counts as done, but has not waited for its synchronous standbys.
    pub(crate) fn take_unreplicated(&self) -> bool {
        self.warnings.take_unreplicated()
    }

    /// Keeps it from being used again.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Relaxed);
    }

    /// True if it can no longer be used.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_given_up.load(Relaxed) || self.client.is_closed()
    }
}
