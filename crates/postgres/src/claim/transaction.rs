//! [`ClaimTx`]: a claim and its transaction.

use std::sync::Arc;

use stepfast_core::clock::{Clock, Timestamp};
use stepfast_core::queue::fairness::FairShare;
use stepfast_core::queue::{DEFAULT_QUEUE, QueueKey};
use stepfast_core::store::{Assignments, Claim, ClaimReply, Route, StoreError};
use stepfast_core::sync::Mutex;

use crate::claim::cursors::{ClaimCursors, ScanPlan};
use crate::claim::inbox_state::{InboxBatch, InboxState};
use crate::claim::queues::QueueState;
use crate::claim::ready::BusyQueue;
use crate::conn::pipeline::{
    self, Param, Query, QueryResult, column, optional_text_array, param, text_array,
};
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};
use crate::lane::Lane;
use crate::rows::types::Timestamptz;
use crate::rows::{ClaimedRow, Columns};

/// The state that a store keeps from claim to claim.
#[derive(Clone, Copy)]
pub(crate) struct ClaimMemory<'a> {
    pub(crate) assignments: &'a Assignments,
    pub(crate) fair_share: &'a Mutex<FairShare>,
    pub(crate) cursors: &'a ClaimCursors,
    pub(crate) inbox: &'a InboxState,
}

/// A claim and its transaction.
pub(super) struct ClaimTx<'a> {
    pub(super) lane: Lane,
    pub(super) claim: &'a Claim,
    pub(super) memory: ClaimMemory<'a>,
    /// The number of the last claim that is known to be durable.
    pub(super) last_number: i64,
    /// A clock that replaces the server's clock. `None` means the server's clock.
    pub(super) clock: Option<&'a dyn Clock>,
    /// The queries that were sent, and their results. Their row changes are counted after the commit.
    pub(super) queries: Vec<Query<'a>>,
    pub(super) results: Vec<QueryResult>,
    /// The queues and queue keys from which the claim takes executions, each with its scanned ranges.
    pub(super) scans: Vec<(QueueKey, ScanPlan)>,
    /// The routes of `scans`, each with the queue key that was scanned.
    pub(super) scanned_routes: Vec<(Route, Arc<str>)>,
    /// The routes of the default queue that have due executions. Empty once the claim has taken them all.
    pub(super) due_routes: Vec<Route>,
    /// For each record of the claim: whether it has a history, and its `seq` in `ready`.
    pub(super) claimed_rows: Vec<(bool, Option<i64>)>,
    /// Queues whose limits allow only one claim at a time.
    pub(super) serial_queues: Vec<Arc<str>>,
    /// Whether the claim takes turns with other claims on queues that would allow several claims at a time.
    pub(super) takes_turns: bool,
    /// Whether the claim is waiting for the turn of another claim to end.
    pub(super) is_waiting_for_turn: bool,
    /// A queue that the claim skipped because another claim had locked it, although the claim found nothing else.
    pub(super) skipped_queue: Option<BusyQueue>,
    /// The queue for whose lock the claim waits first.
    pub(super) awaited_queue: Option<BusyQueue>,
    /// Whether the claim's capacity was smaller than the number of executions that the limits of its queues allow.
    pub(super) is_truncated: bool,
    /// The number of rows that the claim has taken from the inbox. They may be for any worker.
    pub(super) drained_rows: i64,
    /// The rows of the inbox that are being drained; `None` once the database has accepted them.
    pub(super) inbox_batch: Option<InboxBatch>,
}

impl<'a> ClaimTx<'a> {
    /// Whether the claim has made due executions or rows of the inbox ready.
    pub(super) fn has_queued(&self) -> bool {
        self.queries.iter().any(|query| matches!(query.sql, Sql::QueueDue | Sql::DrainInbox))
    }

    /// Resets the claim after its transaction was rolled back.
    pub(super) fn reset(&mut self) {
        self.drained_rows = 0;
        self.is_waiting_for_turn = false;
        self.is_truncated = false;
        self.skipped_queue = None;
        self.queries.clear();
        self.results.clear();
        self.scans.clear();
        self.scanned_routes.clear();
        self.due_routes.clear();
        self.claimed_rows.clear();
    }

    /// Notes the queues whose limits allow only one claim at a time.
    pub(super) fn note_serial_queues(&mut self, queues: &[QueueState]) {
        let serial = queues.iter().filter(|queue| queue.limits.serializes_claims());
        self.serial_queues = serial.map(|queue| queue.name.clone()).collect();
    }

    /// Runs a query that claims executions. Returns their rows, and the time after the query, from which starts count
    /// for rates. Without a rate the time does not matter.
    pub(super) async fn run_claim_query(
        &mut self,
        query: Query<'a>,
        queues: &[QueueState],
        now: Timestamp,
    ) -> Result<(Vec<ClaimedRow>, Timestamp), DbError> {
        let (clock, mut queries) = (self.clock, vec![query]);
        queries.extend(queues.iter().any(|queue| queue.limits.has_rate()).then(time_query));
        match self.send(TxPart::Middle, queries).await? {
            [claimed] => Ok((parse_claimed_rows(claimed)?, now)),
            [claimed, time] => Ok((parse_claimed_rows(claimed)?, parse_time(clock, time)?)),
            _ => Err(corrupt("a query result").into()),
        }
    }

    pub(super) fn add_claimed(&mut self, rows: Vec<ClaimedRow>, reply: &mut ClaimReply) {
        self.claimed_rows.extend(rows.iter().map(|row| (row.has_history, row.seq)));
        reply.records.extend(rows.into_iter().map(|row| row.record));
    }

    /// Sends queries of the transaction, and returns their results. Keeps both for the counters.
    pub(super) async fn send(
        &mut self,
        part: TxPart,
        queries: Vec<Query<'a>>,
    ) -> Result<&[QueryResult], DbError> {
        let results = pipeline::run(&self.lane.session, part, &queries).await?;
        let before = self.results.len();
        self.queries.extend(queries);
        self.results.extend(results);
        Ok(&self.results[before..])
    }

    pub(super) fn now(&self) -> Option<Timestamptz> {
        self.clock.map(|clock| Timestamptz(clock.now()))
    }

    pub(super) fn served_queues_param(&self) -> Param<'a> {
        optional_text_array(self.claim.queues.as_ref())
    }

    pub(super) fn lock_queues_query(&self, names: Option<Vec<String>>) -> Query<'a> {
        let recent = self.memory.cursors.recent_routes();
        let takes_turns = self.takes_turns && names.is_none();
        let params = vec![
            self.served_queues_param(),
            param(names),
            text_array(&self.claim.workflows),
            param(self.claim.app_version.as_deref()),
            column(&recent, |route| route.as_str().to_owned()),
            param(takes_turns),
        ];
        Query { sql: Sql::LockReadyQueues, action: "locking queues with ready executions", params }
    }

    /// Returns a query whose parameters are what the worker can run, and the time now.
    pub(super) fn capability_query(&self, sql: Sql, action: &'static str) -> Query<'a> {
        let params = vec![
            text_array(&self.claim.workflows),
            param(self.now()),
            param(self.claim.app_version.as_deref()),
            self.served_queues_param(),
        ];
        Query { sql, action, params }
    }

    pub(super) fn check_due_query(&self) -> Query<'a> {
        self.capability_query(Sql::CheckDue, "checking for due executions")
    }

    /// Returns the query that moves due executions of these routes, which have named queues, to `ready`.
    pub(super) fn queue_due_query(&self, routes: &[Route]) -> Query<'a> {
        let params = vec![column(routes, |route| route.as_str().to_owned()), param(self.now())];
        Query { sql: Sql::QueueDue, action: "queueing due executions", params }
    }
}

/// A parsed result of check_due.sql.
pub(super) struct DueCheck {
    pub(super) now: Timestamp,
    /// The routes of the default queue that have due executions.
    pub(super) default_routes: Vec<Route>,
    /// The routes of named queues that have due executions.
    pub(super) named_routes: Vec<Route>,
    pub(super) has_inbox_rows: bool,
}

/// Parses the result of check_due.sql.
pub(super) fn parse_due_check(result: &QueryResult) -> Result<DueCheck, StoreError> {
    let mut row = Columns::new(result.rows.first().ok_or_else(|| corrupt("a query result"))?);
    let now = row.time()?;
    let routes = row.next::<Option<Vec<&str>>>()?.unwrap_or_default().into_iter().map(Route::from_text);
    let (default_routes, named_routes) = routes.partition(|route| route.queue() == DEFAULT_QUEUE);
    Ok(DueCheck { now, default_routes, named_routes, has_inbox_rows: row.next()? })
}

/// Returns the query that reads the server's clock.
pub(super) fn time_query() -> Query<'static> {
    Query { sql: Sql::ServerTime, action: "reading the clock", params: Vec::new() }
}

/// Returns the time that [`time_query`] has read, or the time of `clock`, if given.
pub(super) fn parse_time(clock: Option<&dyn Clock>, result: &QueryResult) -> Result<Timestamp, StoreError> {
    let time = Columns::new(result.rows.first().ok_or_else(|| corrupt("a query result"))?).time()?;
    Ok(clock.map_or(time, Clock::now))
}

fn parse_claimed_rows(result: &QueryResult) -> Result<Vec<ClaimedRow>, StoreError> {
    result.rows.iter().map(ClaimedRow::parse).collect()
}

/// Parses the rows of lock_ready_queues.sql.
pub(super) fn parse_queue_states(result: &QueryResult) -> Result<Vec<QueueState>, StoreError> {
    result.rows.iter().map(QueueState::parse).collect()
}
