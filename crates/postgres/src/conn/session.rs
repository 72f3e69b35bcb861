//! [`Session`]: a connection with its prepared statements.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use futures_util::future::try_join_all;
use stepfast_core::store::StoreError;
use tokio::runtime::Handle;
use tokio_postgres::{Client, Statement};

use crate::conn::connector::{Connector, Purpose};
use crate::conn::dial::{DialedClient, ServerWarnings};
use crate::conn::options::Pooling;
use crate::conn::statements::Sql;
use crate::error::store_error;

/// The part of a transaction that is sent in one round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxPart {
    /// A whole transaction.
    Whole,
    /// A whole transaction that waits only briefly for locks of other transactions.
    WholeShortWait,
    /// Begins a transaction and leaves it open.
    Begin,
    /// Begins a transaction that waits only briefly for locks of other transactions, and leaves it open.
    BeginShortWait,
    /// Begins a read-only transaction that sees one snapshot, and leaves it open.
    BeginSnapshot,
    /// Continues an open transaction.
    Middle,
    /// Continues an open transaction and commits it.
    End,
    /// Statements that commit one by one.
    Standalone,
}

impl TxPart {
    /// Returns the statement that begins the transaction, and the one that follows the settings. The second statement
    /// may be empty. Returns `None` if this part does not begin a transaction.
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

/// A configured connection of the store.
pub(crate) struct Session {
    /// The connection.
    pub client: Client,
    warnings: Arc<ServerWarnings>,
    send_mode: SendMode,
    /// The number of this session, which no other session of the process has.
    number: u64,
    /// Whether an error has left the connection's state in doubt.
    is_unusable: AtomicBool,
    /// Rows written or claimed since the plans were made.
    rows_since_plan: AtomicU64,
    /// The number of rows after which plans are made again.
    replan_threshold: AtomicU64,
}

/// The way in which a session sends statements.
enum SendMode {
    /// A connection to one server session. The connection was configured when it was opened, and its statements are
    /// prepared.
    Prepared(Vec<Option<Statement>>),
    /// A connection to a proxy that assigns a server connection per transaction. Each transaction sends its settings.
    /// Statements are not prepared, because the next transaction may run on another server connection.
    Unnamed { settings: String },
}

/// The statement that begins a transaction on a server connection whose defaults another client may have changed.
const BEGIN_WITH_DEFAULTS: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// The number of rows after which plans are made again: the value for a new session, which doubles each time, and the
/// maximum.
const REPLAN_ROWS: (u64, u64) = (32, 65_536);

/// The number of sessions that this process has opened.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

impl Session {
    /// Opens a connection driven by `runtime`, and prepares `statements` on it.
    pub(crate) async fn open(
        connector: &Connector,
        runtime: &Handle,
        purpose: Purpose,
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let dialed = connector.connect(runtime, purpose).await?;
        Self::from_client(connector, dialed, purpose, statements).await
    }

    /// Creates a session on a connection that is configured for `purpose`, and prepares `statements` on it.
    pub(crate) async fn from_client(
        connector: &Connector,
        DialedClient { client, warnings }: DialedClient,
        purpose: Purpose,
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let send_mode = match connector.options().pooling {
            Pooling::Transaction => SendMode::Unnamed { settings: connector.transaction_settings(purpose) },
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
        let (rows_since_plan, replan_threshold) = (AtomicU64::new(0), AtomicU64::new(REPLAN_ROWS.0));
        Ok(Self {
            client,
            warnings,
            send_mode,
            number: SESSIONS.fetch_add(1, Relaxed),
            is_unusable: AtomicBool::new(false),
            rows_since_plan,
            replan_threshold,
        })
    }

    /// Returns a statement that was prepared when the session was opened. Returns `None` if the session does not
    /// prepare statements.
    pub(crate) fn statement(&self, sql: Sql) -> Result<Option<&Statement>, StoreError> {
        match &self.send_mode {
            SendMode::Unnamed { .. } => Ok(None),
            SendMode::Prepared(prepared) => match &prepared[sql as usize] {
                Some(statement) => Ok(Some(statement)),
                None => {
                    Err(StoreError::Unavailable(format!("statement {sql:?} is not prepared in this session")))
                }
            },
        }
    }

    /// Returns the statements that begin the transaction of `part`, if it begins one.
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

    /// Whether this session wraps the standalone statements of `part` in a transaction, which stays open after a failure.
    pub(crate) fn wraps_in_transaction(&self, part: TxPart) -> bool {
        part == TxPart::Standalone && matches!(self.send_mode, SendMode::Unnamed { .. })
    }

    /// Counts `rows` rows that are about to be written. Returns true if the session's plans were made when the tables
    /// were much smaller. Such a plan may scan a whole table, because the table was nearly empty at that time.
    pub(crate) fn needs_new_plans(&self, rows: usize) -> bool {
        if matches!(self.send_mode, SendMode::Unnamed { .. }) {
            // unprepared statements are planned each time
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

    /// Returns whether a commit since the last call has succeeded without waiting for its synchronous standbys.
    pub(crate) fn take_unreplicated(&self) -> bool {
        self.warnings.take_unreplicated()
    }

    /// Returns the number of the one server session on which all statements run. Returns `None` if statements may run on
    /// several.
    pub(crate) fn server_session(&self) -> Option<u64> {
        matches!(self.send_mode, SendMode::Prepared(_)).then_some(self.number)
    }

    /// Marks the session as unusable, so that no caller uses it again.
    pub(crate) fn mark_unusable(&self) {
        self.is_unusable.store(true, Relaxed);
    }

    /// Whether the session can no longer be used.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_unusable.load(Relaxed) || self.client.is_closed()
    }
}
