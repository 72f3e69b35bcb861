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
pub(crate) enum TxPart {
    /// A whole transaction.
    Whole,
    /// A whole transaction that waits only briefly for other people's locks.
    WholeShortWait,
    /// Begins one and leaves it open.
    Begin,
    /// Begins one that waits only briefly for other people's locks.
    BeginShortWait,
    /// Begins one that reads, and sees the database as it was at one moment.
    BeginSnapshot,
    /// Goes on in one.
    Middle,
    /// Goes on in one and commits it.
    End,
    /// Statements on their own.
    Standalone,
}

impl TxPart {
    /// The statement that begins the transaction, if it begins here, and what comes after the settings.
    pub(crate) fn begin_statement(self) -> Option<(&'static str, &'static str)> {
        match self {
            TxPart::Whole | TxPart::Begin => Some(("BEGIN", "")),
            TxPart::WholeShortWait | TxPart::BeginShortWait => Some(("BEGIN", "SET LOCAL lock_timeout = 10")),
            TxPart::BeginSnapshot => Some(("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", "")),
            TxPart::Middle | TxPart::End | TxPart::Standalone => None,
        }
    }

    pub(crate) fn commits(self) -> bool {
        matches!(self, TxPart::Whole | TxPart::WholeShortWait | TxPart::End)
    }
}

/// A connection of the store.
pub(crate) struct Session {
    /// The connection.
    pub client: Client,
    warnings: Arc<Warnings>,
    send_mode: SendMode,
    /// What the server has reported on it leaves its state in doubt.
    is_unusable: AtomicBool,
    /// Rows written or claimed since the plans were made, and how many of them make new plans worthwhile.
    rows_since_plan: AtomicU64,
    replan_threshold: AtomicU64,
}

/// How statements are sent.
enum SendMode {
    /// The connection is the server's: its settings were set when it was made, and statements are prepared.
    Prepared(Vec<Option<Statement>>),
    /// A proxy lends another connection of the server for each transaction: it has to bring its settings along,
    /// and statements have no name by which the next transaction could find them.
    Unnamed { settings: String },
}

/// How a transaction begins where the defaults may be anybody's.
const BEGIN_WITH_DEFAULTS: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// Plans are made anew when this many rows were written, then twice as many, and so on, up to the last.
const REPLAN_ROWS: (u64, u64) = (32, 65_536);

impl Session {
    /// A connection driven by `runtime`, with the statements that it will need.
    pub(crate) async fn open(
        connector: &Connector,
        runtime: &Handle,
        role: Role,
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let wire = connector.connect(runtime, role).await?;
        Self::from_client(connector, wire, role, statements).await
    }

    /// The same on a connection that is there and set up for `role`.
    pub(crate) async fn from_client(
        connector: &Connector,
        Wire { client, warnings }: Wire,
        role: Role,
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let way = match connector.options().pooling {
            Pooling::Transaction => SendMode::Unnamed { settings: connector.local_settings(role) },
            Pooling::Session => {
                let mut prepared = vec![None; Sql::ALL.len()];
                let texts = statements.iter().map(|sql| client.prepare(sql.text()));
                let all =
                    try_join_all(texts).await.map_err(|error| store_error("preparing statements", &error))?;
                for (&sql, statement) in statements.iter().zip(all) {
                    prepared[sql as usize] = Some(statement);
                }
                SendMode::Prepared(prepared)
            }
        };
        let (rows, rows_per_plan) = (AtomicU64::new(0), AtomicU64::new(REPLAN_ROWS.0));
        Ok(Self { client, warnings, send_mode: way, is_unusable: AtomicBool::new(false), rows_since_plan: rows, replan_threshold: rows_per_plan })
    }

    /// A prepared statement; preparing it was asked for when the session was opened. `None` where statements
    /// have no names.
    pub(crate) fn statement(&self, sql: Sql) -> Result<Option<&Statement>, StoreError> {
        match &self.send_mode {
            SendMode::Unnamed { .. } => Ok(None),
            SendMode::Prepared(prepared) => match &prepared[sql as usize] {
                Some(statement) => Ok(Some(statement)),
                None => Err(StoreError::Unavailable(format!("statement {sql:?} is not prepared here"))),
            },
        }
    }

    /// What begins the transaction of a part, if one begins here.
    pub(crate) fn begin_statement(&self, part: TxPart) -> Option<Cow<'static, str>> {
        match (&self.send_mode, part.begin_statement()) {
            (SendMode::Prepared(_), begin) => begin.map(|(begin, then)| match then {
                "" => Cow::Borrowed(begin),
                then => Cow::Owned(format!("{begin}; {then}")),
            }),
            (SendMode::Unnamed { .. }, None) if part != TxPart::Standalone => None,
            (SendMode::Unnamed { settings }, begin) => {
                let (begin, then) = match begin {
                    None | Some(("BEGIN", "")) => (BEGIN_WITH_DEFAULTS, ""),
                    Some(("BEGIN", then)) => (BEGIN_WITH_DEFAULTS, then),
                    Some(other) => other,
                };
                Some(Cow::Owned(format!("{begin}; {settings}{then}")))
            }
        }
    }

    /// True if the part is a transaction of its own here, which a failure leaves open.
    pub(crate) fn wraps_in_transaction(&self, part: TxPart) -> bool {
        part == TxPart::Standalone && matches!(self.send_mode, SendMode::Unnamed { .. })
    }

    /// Counts rows that are about to be written. True if the plans are of a time when the tables were much
    /// smaller: a plan that is kept for good may walk through a table that was nearly empty when it was made.
    pub(crate) fn needs_new_plans(&self, rows: usize) -> bool {
        if matches!(self.send_mode, SendMode::Unnamed { .. }) {
            // each is planned when it is sent
            return false;
        }
        let rows = self.rows_since_plan.fetch_add(rows as u64, Relaxed) + rows as u64;
        let limit = self.replan_threshold.load(Relaxed);
        if rows < limit {
            return false;
        }
        self.rows_since_plan.store(0, Relaxed);
        self.replan_threshold.store((limit * 2).min(REPLAN_ROWS.1), Relaxed);
        true
    }

    /// True if a commit since the last call counts as done, but has not waited for its synchronous standbys.
    pub(crate) fn take_unreplicated(&self) -> bool {
        self.warnings.take_unreplicated()
    }

    /// Keeps it from being used again.
    pub(crate) fn mark_unusable(&self) {
        self.is_unusable.store(true, Relaxed);
    }

    /// True if it can no longer be used.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_unusable.load(Relaxed) || self.client.is_closed()
    }
}
