//! [`Lane`]: a lane of a worker, with a connection of its own. Each flush and claim on this connection checks the fence
//! in the lane's row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use stepfast_core::Key;
use stepfast_core::store::{Durability, StoreError, WorkerId};
use tokio::runtime::{Handle, Id};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::conn::connector::{Connector, Purpose};
use crate::conn::pipeline;
use crate::conn::pipeline::{Query, QueryResult, param};
use crate::conn::session::Session;
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};
use crate::rows::Columns;
use crate::rows::types::to_uuid;

/// A lane that several calls share. The option is `None` while a call uses the lane, and before its first connection.
type SharedLane = Arc<Mutex<Option<Lane>>>;

/// The lanes of this store's workers, for flushes and claims alike.
#[derive(Default)]
pub(crate) struct Lanes {
    shared_lanes: StdMutex<HashMap<(WorkerId, u16), SharedLane>>,
    progress: StdMutex<HashMap<WorkerId, WorkerProgress>>,
}

/// A worker's lanes, each with its last flush or claim that is known to be durable.
#[derive(Default)]
struct WorkerProgress {
    positions: HashMap<u16, LanePosition>,
    /// The lane in which the worker's claims are numbered; `None` before its first claim.
    claim_lane: Option<u16>,
}

/// The number of a lane's last acknowledged flush or claim.
#[derive(Clone, Debug)]
pub(crate) struct LanePosition {
    pub lane: u16,
    pub number: i64,
    /// The ctid that the lane's row had at that number. The row may have moved since: see fence.sql.
    pub ctid_hint: Option<String>,
    /// Whether no number of the lane has become durable since the worker's last renewal.
    is_idle: bool,
    /// The server session on which a renewal has found this number last.
    found_on: Option<u64>,
}

impl Lanes {
    /// Returns the shared entry of a lane. A caller takes the lane out of the entry, and puts the lane back once its
    /// connection is clean. So a call that is dropped half-way leaves no connection in an unknown state behind.
    pub(crate) fn shared_lane(&self, worker: WorkerId, number: u16) -> SharedLane {
        let mut shared_lanes = self.shared_lanes.lock().unwrap_or_else(PoisonError::into_inner);
        shared_lanes.entry((worker, number)).or_default().clone()
    }

    /// Closes the connections of a worker's lanes, and forgets the durable numbers of these lanes.
    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        let mut shared_lanes = self.shared_lanes.lock().unwrap_or_else(PoisonError::into_inner);
        shared_lanes.retain(|(owner, _), _| *owner != worker);
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
    }

    fn with_worker<R>(&self, worker: WorkerId, f: impl FnOnce(&mut WorkerProgress) -> R) -> R {
        f(self.progress.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_default())
    }

    /// Sets the lane on which the worker claims.
    pub(crate) fn set_claim_lane(&self, worker: WorkerId, lane: u16) {
        self.with_worker(worker, |progress| progress.claim_lane = Some(lane));
    }

    /// Returns the number of the lane on which the worker claims, or `None` before its first claim.
    pub(crate) fn claim_lane(&self, worker: WorkerId) -> Option<u16> {
        self.with_worker(worker, |progress| progress.claim_lane)
    }

    /// Returns the worker's last claim that is known to be durable, or `None` before the first one.
    pub(crate) fn last_claim(&self, worker: WorkerId) -> Option<LanePosition> {
        self.with_worker(worker, |progress| progress.positions.get(&progress.claim_lane?).cloned())
    }

    /// Records that the flush or claim with this number is durable on a lane.
    pub(crate) fn record_durable(&self, worker: WorkerId, lane: u16, number: i64, ctid_hint: Option<String>) {
        self.with_worker(worker, |progress| {
            if progress.positions.get(&lane).is_none_or(|position| position.number < number) {
                progress
                    .positions
                    .insert(lane, LanePosition { lane, number, ctid_hint, is_idle: false, found_on: None });
            }
        });
    }

    /// Returns the lanes to check for lost history on a server session: those on which no number became durable between
    /// the last call and this one, and whose number was not yet found on this session. A lane in use needs no check: its
    /// next flush or claim proves that the database has lost nothing. Neither does a number that was found on this
    /// session, because a server that loses history ends its sessions. Without a session (`None`), each call returns all
    /// idle lanes.
    pub(crate) fn take_idle_positions(&self, worker: WorkerId, session: Option<u64>) -> Vec<LanePosition> {
        self.with_worker(worker, |progress| {
            let is_due = |it: &&LanePosition| it.is_idle && (session.is_none() || it.found_on != session);
            let idle = progress.positions.values().filter(is_due).cloned().collect();
            progress.positions.values_mut().for_each(|position| position.is_idle = true);
            idle
        })
    }

    /// Records that a check on a server session has found these positions.
    pub(crate) fn record_found(&self, worker: WorkerId, found: &[LanePosition], session: Option<u64>) {
        self.with_worker(worker, |progress| {
            for LanePosition { lane, number, .. } in found {
                if let Some(position) = progress.positions.get_mut(lane).filter(|it| it.number == *number) {
                    position.found_on = session;
                }
            }
        });
    }
}

/// Returns the error for a lane whose last number in the database is below the number that the database acknowledged.
pub(crate) fn lost_history(lane: u16, acknowledged: i64, found: i64) -> StoreError {
    StoreError::Corrupt(format!(
        "the database has lost history: lane {lane} acknowledged number {acknowledged}, but the database has {found}; \
         was it restored from a backup, or did it fail over to a server that lagged behind?"
    ))
}

/// A lane of a worker, with its connection.
pub(crate) struct Lane {
    /// The lane's connection.
    pub session: Session,
    runtime: Id,
    worker: WorkerId,
    number: u16,
    /// The ctid that the lane's row had after the last fence. The row may have moved since: see fence.sql.
    ctid_hint: Option<String>,
    /// Whether a commit waits until the server has flushed its log to disk.
    is_flushed: bool,
    /// The number of the worker's last claim that a flush of this lane has confirmed.
    last_seen_claim: i64,
}

impl Lane {
    /// Returns `kept` if its connection works in this runtime; otherwise opens the lane on a new connection.
    pub(crate) async fn open(
        connector: &Connector,
        kept: Option<Self>,
        (worker, number): (WorkerId, u16),
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let handle = Handle::try_current()
            .map_err(|_| StoreError::Unavailable("a lane was used outside of a Tokio runtime".into()))?;
        let runtime = handle.id();
        match kept {
            Some(lane) if lane.runtime == runtime && lane.is_usable() => Ok(lane),
            _ => {
                let session = Session::open(connector, &handle, Purpose::Lane, statements).await?;
                let is_flushed = connector.options().durability == Durability::Full;
                Ok(Self { session, runtime, worker, number, ctid_hint: None, is_flushed, last_seen_claim: 0 })
            }
        }
    }

    /// Whether the lane's connection is open.
    pub(crate) fn is_usable(&self) -> bool {
        !self.session.is_closed()
    }

    /// Returns `claim` if no flush of this lane has confirmed it. The next flush then confirms that the database has
    /// the claim. Without this check, the flush could record facts of executions whose claim was lost. If the database
    /// loses the claim after that flush, it loses the flush too, and the lane's own numbers reveal the loss.
    pub(crate) fn unseen_claim(&self, claim: Option<LanePosition>) -> Option<LanePosition> {
        claim.filter(|claim| claim.number > self.last_seen_claim)
    }

    /// Returns the query of the fence, which checks the lane's epoch and sets its last number to `number`. If
    /// `has_gaps` is true, numbers may be skipped. If `claim` is given, the database must have this claim. Also records
    /// the assignment of the executions that the transaction sets running, unless `started` is empty.
    pub(crate) fn fence_query(
        &self,
        epoch: i64,
        number: i64,
        has_gaps: bool,
        claim: Option<&LanePosition>,
        started: Vec<Key>,
    ) -> Query<'static> {
        let started: Vec<Uuid> = started.into_iter().map(to_uuid).collect();
        let params = vec![
            param(self.worker.0),
            param(self.number.cast_signed()),
            param(epoch),
            param(number),
            param(self.ctid_hint.clone()),
            param(has_gaps),
            param(self.is_flushed),
            param(claim.map(|claim| claim.lane.cast_signed())),
            param(claim.map(|claim| claim.number)),
            param(claim.and_then(|claim| claim.ctid_hint.clone())),
            param((!started.is_empty()).then_some(started)),
        ];
        Query { sql: Sql::Fence, action: "taking the lane's next number", params }
    }

    /// Records the result of the fence, which is one of the queries of a durable transaction. `claim`: the claim that
    /// this transaction has confirmed, if any.
    pub(crate) fn record_fence(
        &mut self,
        queries: &[Query<'_>],
        results: &[QueryResult],
        claim: Option<&LanePosition>,
    ) {
        let fence = queries.iter().position(|query| query.sql == Sql::Fence).and_then(|i| results.get(i));
        self.ctid_hint = fence.and_then(|fence| fence.rows.first()).and_then(|row| row.try_get(0).ok());
        self.last_seen_claim = claim.map_or(self.last_seen_claim, |claim| claim.number);
    }

    /// Returns the last known ctid of the lane's row.
    pub(crate) fn ctid_hint(&self) -> Option<String> {
        self.ctid_hint.clone()
    }

    /// Returns the query that reads the lane's row; see [`parse_lane_state`].
    pub(crate) fn state_query(&self) -> Query<'static> {
        lane_state_query(self.worker, self.number, self.ctid_hint.clone())
    }

    /// Waits until all commits of the lane are as durable as the configuration promises, by committing once more. An
    /// earlier commit may have returned before its standbys had confirmed it.
    pub(crate) async fn await_durable(&self) -> Result<(), DbError> {
        let params = vec![param(self.worker.0), param(self.number.cast_signed())];
        let query = Query { sql: Sql::TouchLane, action: "waiting for earlier commits", params };
        pipeline::run(&self.session, TxPart::Whole, &[query]).await.map(|_| ())
    }

    /// Reads the lane's epoch, last number, and the outcomes that are kept with this number. Returns `None` if the lane
    /// does not exist.
    pub(crate) async fn read_state(&self) -> Result<Option<(i64, i64, Option<String>)>, DbError> {
        let results = pipeline::run(&self.session, TxPart::Standalone, &[self.state_query()]).await?;
        let Some(row) = results.first().and_then(|result| result.rows.first()) else { return Ok(None) };
        let mut row = Columns::new(row);
        Ok(Some((row.next()?, row.next()?, row.next()?)))
    }

    /// Returns an error if the database does not have this claim of the lane's worker.
    pub(crate) async fn check_claim(&self, claim: &LanePosition) -> Result<(), DbError> {
        let query = lane_state_query(self.worker, claim.lane, None);
        let results = pipeline::run(&self.session, TxPart::Standalone, &[query]).await?;
        let state = parse_lane_state(results.first().ok_or_else(|| corrupt("a query result"))?)?;
        let last = state.map_or(0, |(_, last)| last);
        if last < claim.number { Err(lost_history(claim.lane, claim.number, last).into()) } else { Ok(()) }
    }
}

/// Returns the query that reads the row of a lane; see [`parse_lane_state`].
pub(crate) fn lane_state_query(worker: WorkerId, lane: u16, ctid_hint: Option<String>) -> Query<'static> {
    let params = vec![param(worker.0), param(lane.cast_signed()), param(ctid_hint)];
    Query { sql: Sql::LaneState, action: "reading the lane", params }
}

/// Parses the result of [`lane_state_query`]. Returns the epoch and the last number, or `None` if the lane does not
/// exist.
pub(crate) fn parse_lane_state(result: &QueryResult) -> Result<Option<(i64, i64)>, DbError> {
    let Some(row) = result.rows.first() else { return Ok(None) };
    let mut row = Columns::new(row);
    Ok(Some((row.next()?, row.next()?)))
}
