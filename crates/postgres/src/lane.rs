//! [`Lane`]: a connection of its own, and the row that fences whatever is sent on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use stepfast_core::store::{Durability, StoreError, WorkerId};
use tokio::runtime::{Handle, Id};
use tokio::sync::Mutex;

use crate::conn::connector::{Connector, Role};
use crate::conn::pipeline;
use crate::conn::pipeline::{QueryResult, Query, param};
use crate::conn::session::TxPart;
use crate::conn::session::Session;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};
use crate::rows::Columns;

type SharedLane = Arc<Mutex<Option<Lane>>>;

/// The lanes of this store's workers, flushes' and claims' alike.
#[derive(Default)]
pub(crate) struct Lanes {
    shared_lanes: StdMutex<HashMap<(WorkerId, u16), SharedLane>>,
    progress: StdMutex<HashMap<WorkerId, WorkerProgress>>,
}

/// What a worker knows to be durable.
#[derive(Default)]
struct WorkerProgress {
    positions: HashMap<u16, LanePosition>,
    /// The lane that its claims are numbered in.
    claim_lane: Option<u16>,
}

/// The last number of a lane that was acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct LanePosition {
    pub lane: u16,
    pub number: i64,
    /// Where the lane's row was then. A hint: see fence.sql.
    pub ctid_hint: Option<String>,
    /// True if there was none since the last renewal.
    is_idle: bool,
}

impl Lanes {
    /// The place of a lane. Whoever uses it takes it out and puts it back when its connection is clean, so a call
    /// that is given up half-way leaves no connection in an unknown state behind.
    pub(crate) fn shared_lane(&self, worker: WorkerId, number: u16) -> SharedLane {
        let mut slots = self.shared_lanes.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry((worker, number)).or_default().clone()
    }

    /// Closes the connections of a worker.
    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        let mut slots = self.shared_lanes.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|(owner, _), _| *owner != worker);
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
    }

    fn with_worker<R>(&self, worker: WorkerId, f: impl FnOnce(&mut WorkerProgress) -> R) -> R {
        f(self.progress.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_default())
    }

    /// The worker claims on this lane.
    pub(crate) fn set_claim_lane(&self, worker: WorkerId, lane: u16) {
        self.with_worker(worker, |known| known.claim_lane = Some(lane));
    }

    /// The lane on which it claims, if it has.
    pub(crate) fn claim_lane(&self, worker: WorkerId) -> Option<u16> {
        self.with_worker(worker, |known| known.claim_lane)
    }

    /// Its last claim that is known to have happened.
    pub(crate) fn last_claim(&self, worker: WorkerId) -> Option<LanePosition> {
        self.with_worker(worker, |known| known.positions.get(&known.claim_lane?).cloned())
    }

    /// A number is durable.
    pub(crate) fn record_durable(&self, worker: WorkerId, lane: u16, number: i64, place: Option<String>) {
        self.with_worker(worker, |known| {
            if known.positions.get(&lane).is_none_or(|mark| mark.number < number) {
                known.positions.insert(lane, LanePosition { lane, number, ctid_hint: place, is_idle: false });
            }
        });
    }

    /// The lanes on which nothing has landed between the last two calls. Those that go on prove by themselves that they
    /// have lost nothing.
    pub(crate) fn take_idle_positions(&self, worker: WorkerId) -> Vec<LanePosition> {
        self.with_worker(worker, |known| {
            let idle = known.positions.values().filter(|mark| mark.is_idle).cloned().collect();
            known.positions.values_mut().for_each(|mark| mark.is_idle = true);
            idle
        })
    }
}

/// The error of a database in which a lane has less than it acknowledged.
pub(crate) fn lost_history(lane: u16, known: i64, found: i64) -> StoreError {
    StoreError::Corrupt(format!(
        "the database has lost history: the last number of lane {lane} was {known}, it knows {found}; was it restored from \
         a backup, or did it fail over to a server that lagged behind?"
    ))
}

/// A lane.
pub(crate) struct Lane {
    /// Its connection.
    pub session: Session,
    runtime: Id,
    worker: WorkerId,
    number: u16,
    /// Where its row was after the last fence. A hint: see fence.sql.
    ctid_hint: Option<String>,
    /// True if its commits wait until they are flushed.
    is_flushed: bool,
    /// The last claim of its worker that it has seen to be there.
    last_seen_claim: i64,
}

impl Lane {
    /// `kept`, if its connection works in this runtime; else the lane on a new one.
    pub(crate) async fn open(
        connector: &Connector,
        kept: Option<Self>,
        (worker, number): (WorkerId, u16),
        statements: &[Sql],
    ) -> Result<Self, StoreError> {
        let handle = Handle::try_current()
            .map_err(|_| StoreError::Unavailable("a lane was used outside of a runtime".into()))?;
        let runtime = handle.id();
        match kept {
            Some(lane) if lane.runtime == runtime && lane.is_usable() => Ok(lane),
            _ => {
                let session = Session::open(connector, &handle, Role::Lane, statements).await?;
                let is_flushed = connector.options().durability == Durability::Full;
                Ok(Self { session, runtime, worker, number, ctid_hint: None, is_flushed, last_seen_claim: 0 })
            }
        }
    }

    /// False once its connection is closed.
    pub(crate) fn is_usable(&self) -> bool {
        !self.session.is_closed()
    }

    /// The claim that its next flush has to see, so that nothing is recorded of what a lost claim took. Once a flush has seen
    /// it, whatever loses the claim loses that flush too, and the lane's own numbers tell.
    pub(crate) fn unseen_claim(&self, claim: Option<LanePosition>) -> Option<LanePosition> {
        claim.filter(|claim| claim.number > self.last_seen_claim)
    }

    /// The compare-and-set that a flush or claim begins with. `has_gaps`: numbers may be left out; `claim`: what has to be
    /// there.
    pub(crate) fn fence_query(
        &self,
        epoch: i64,
        number: i64,
        has_gaps: bool,
        claim: Option<&LanePosition>,
    ) -> Query<'static> {
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
        ];
        Query { sql: Sql::Fence, action: "taking the lane's next number", params }
    }

    /// Of these jobs, which are durable, one was the fence, which has seen `claim`.
    pub(crate) fn record_fence(&mut self, jobs: &[Query<'_>], answers: &[QueryResult], claim: Option<&LanePosition>) {
        let fence = jobs.iter().position(|job| job.sql == Sql::Fence).and_then(|i| answers.get(i));
        self.ctid_hint = fence.and_then(|fence| fence.rows.first()).and_then(|row| row.try_get(0).ok());
        self.last_seen_claim = claim.map_or(self.last_seen_claim, |claim| claim.number);
    }

    /// Where its row is, as far as is known.
    pub(crate) fn ctid_hint(&self) -> Option<String> {
        self.ctid_hint.clone()
    }

    /// Reads its row; see [`state_of`].
    pub(crate) fn state_query(&self) -> Query<'static> {
        lane_state_query(self.worker, self.number, self.ctid_hint.clone())
    }

    /// Returns once all that it has committed is as durable as a commit makes it: a later commit has waited for that. An
    /// earlier one may have been cut short when it waited for a standby.
    pub(crate) async fn await_durable(&self) -> Result<(), DbError> {
        let params = vec![param(self.worker.0), param(self.number.cast_signed())];
        let job = Query { sql: Sql::Prove, action: "waiting for what was committed", params };
        pipeline::run(&self.session, TxPart::Whole, &[job]).await.map(|_| ())
    }

    /// Its epoch and its last number, if there is such a lane.
    pub(crate) async fn read_state(&self) -> Result<Option<(i64, i64)>, DbError> {
        self.query_state(self.state_query()).await
    }

    /// An error if `claim` of its worker is not there.
    pub(crate) async fn check_claim(&self, claim: &LanePosition) -> Result<(), DbError> {
        let state = self.query_state(lane_state_query(self.worker, claim.lane, None)).await?;
        let last = state.map_or(0, |(_, last)| last);
        if last < claim.number { Err(lost_history(claim.lane, claim.number, last).into()) } else { Ok(()) }
    }

    async fn query_state(&self, read: Query<'_>) -> Result<Option<(i64, i64)>, DbError> {
        let answers = pipeline::run(&self.session, TxPart::Standalone, &[read]).await?;
        parse_lane_state(answers.first().ok_or_else(|| corrupt("an answer"))?)
    }
}

/// Reads the row of a lane; see [`state_of`].
pub(crate) fn lane_state_query(worker: WorkerId, lane: u16, place: Option<String>) -> Query<'static> {
    let params = vec![param(worker.0), param(lane.cast_signed()), param(place)];
    Query { sql: Sql::Lane, action: "reading the lane", params }
}

/// What [`read`] has found: epoch and last number.
pub(crate) fn parse_lane_state(answer: &QueryResult) -> Result<Option<(i64, i64)>, DbError> {
    let Some(row) = answer.rows.first() else { return Ok(None) };
    let mut row = Columns::of(row);
    Ok(Some((row.next()?, row.next()?)))
}
