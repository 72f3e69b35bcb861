//! [`Lane`]: a connection of its own, and the row that fences whatever is sent on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use stepfast_core::store::{Durability, StoreError, WorkerId};
use tokio::runtime::{Handle, Id};
use tokio::sync::Mutex;

use crate::conn::connector::{Connector, Role};
use crate::conn::pipeline;
use crate::conn::pipeline::{Answer, Job, one};
use crate::conn::session::Part;
use crate::conn::session::Session;
use crate::conn::statements::Sql;
use crate::error::{Trouble, damaged};
use crate::rows::Columns;

type Slot = Arc<Mutex<Option<Lane>>>;

/// The lanes of this store's workers, flushes' and claims' alike.
#[derive(Default)]
pub(crate) struct Lanes {
    slots: StdMutex<HashMap<(WorkerId, u16), Slot>>,
    known: StdMutex<HashMap<WorkerId, Known>>,
}

/// What a worker knows to be durable.
#[derive(Default)]
struct Known {
    lanes: HashMap<u16, Mark>,
    /// The lane that its claims are numbered in.
    claims: Option<u16>,
}

/// The last number of a lane that was acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub lane: u16,
    pub number: i64,
    /// Where the lane's row was then. A hint: see fence.sql.
    pub place: Option<String>,
    /// True if there was none since the last renewal.
    is_idle: bool,
}

impl Lanes {
    /// The place of a lane. Whoever uses it takes it out and puts it back when its connection is clean, so a call
    /// that is given up half-way leaves no connection in an unknown state behind.
    pub(crate) fn slot(&self, worker: WorkerId, number: u16) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry((worker, number)).or_default().clone()
    }

    /// Closes the connections of a worker.
    pub(crate) fn forget(&self, worker: WorkerId) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|(owner, _), _| *owner != worker);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
    }

    fn of<R>(&self, worker: WorkerId, f: impl FnOnce(&mut Known) -> R) -> R {
        f(self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_default())
    }

    /// The worker claims on this lane.
    pub(crate) fn claims_on(&self, worker: WorkerId, lane: u16) {
        self.of(worker, |known| known.claims = Some(lane));
    }

    /// The lane on which it claims, if it has.
    pub(crate) fn claims_lane(&self, worker: WorkerId) -> Option<u16> {
        self.of(worker, |known| known.claims)
    }

    /// Its last claim that is known to have happened.
    pub(crate) fn last_claim(&self, worker: WorkerId) -> Option<Mark> {
        self.of(worker, |known| known.lanes.get(&known.claims?).cloned())
    }

    /// A number is durable.
    pub(crate) fn landed(&self, worker: WorkerId, lane: u16, number: i64, place: Option<String>) {
        self.of(worker, |known| {
            if known.lanes.get(&lane).is_none_or(|mark| mark.number < number) {
                known.lanes.insert(lane, Mark { lane, number, place, is_idle: false });
            }
        });
    }

    /// The lanes on which nothing has landed between the last two calls. Those that go on prove by themselves that they
    /// have lost nothing.
    pub(crate) fn idle(&self, worker: WorkerId) -> Vec<Mark> {
        self.of(worker, |known| {
            let idle = known.lanes.values().filter(|mark| mark.is_idle).cloned().collect();
            known.lanes.values_mut().for_each(|mark| mark.is_idle = true);
            idle
        })
    }
}

/// The error of a database in which a lane has less than it acknowledged.
pub(crate) fn lost(lane: u16, known: i64, found: i64) -> StoreError {
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
    place: Option<String>,
    /// True if its commits wait until they are flushed.
    is_flushed: bool,
    /// The last claim of its worker that it has seen to be there.
    last_claim: i64,
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
                Ok(Self { session, runtime, worker, number, place: None, is_flushed, last_claim: 0 })
            }
        }
    }

    /// False once its connection is closed.
    pub(crate) fn is_usable(&self) -> bool {
        !self.session.is_closed()
    }

    /// The claim that its next flush has to see, so that nothing is recorded of what a lost claim took. Once a flush has seen
    /// it, whatever loses the claim loses that flush too, and the lane's own numbers tell.
    pub(crate) fn unseen(&self, claim: Option<Mark>) -> Option<Mark> {
        claim.filter(|claim| claim.number > self.last_claim)
    }

    /// The compare-and-set that a flush or claim begins with. `has_gaps`: numbers may be left out; `claim`: what has to be
    /// there.
    pub(crate) fn fence(
        &self,
        epoch: i64,
        number: i64,
        has_gaps: bool,
        claim: Option<&Mark>,
    ) -> Job<'static> {
        let params = vec![
            one(self.worker.0),
            one(self.number.cast_signed()),
            one(epoch),
            one(number),
            one(self.place.clone()),
            one(has_gaps),
            one(self.is_flushed),
            one(claim.map(|claim| claim.lane.cast_signed())),
            one(claim.map(|claim| claim.number)),
            one(claim.and_then(|claim| claim.place.clone())),
        ];
        Job { sql: Sql::Fence, what: "taking the lane's next number", params }
    }

    /// Of these jobs, which are durable, one was the fence, which has seen `claim`.
    pub(crate) fn fenced(&mut self, jobs: &[Job<'_>], answers: &[Answer], claim: Option<&Mark>) {
        let fence = jobs.iter().position(|job| job.sql == Sql::Fence).and_then(|i| answers.get(i));
        self.place = fence.and_then(|fence| fence.rows.first()).and_then(|row| row.try_get(0).ok());
        self.last_claim = claim.map_or(self.last_claim, |claim| claim.number);
    }

    /// Where its row is, as far as is known.
    pub(crate) fn place(&self) -> Option<String> {
        self.place.clone()
    }

    /// Reads its row; see [`state_of`].
    pub(crate) fn read(&self) -> Job<'static> {
        read(self.worker, self.number, self.place.clone())
    }

    /// Returns once all that it has committed is as durable as a commit makes it: a later commit has waited for that. An
    /// earlier one may have been cut short when it waited for a standby.
    pub(crate) async fn prove(&self) -> Result<(), Trouble> {
        let params = vec![one(self.worker.0), one(self.number.cast_signed())];
        let job = Job { sql: Sql::Prove, what: "waiting for what was committed", params };
        pipeline::run(&self.session, Part::Whole, &[job]).await.map(|_| ())
    }

    /// Its epoch and its last number, if there is such a lane.
    pub(crate) async fn state(&self) -> Result<Option<(i64, i64)>, Trouble> {
        self.ask(self.read()).await
    }

    /// An error if `claim` of its worker is not there.
    pub(crate) async fn expect(&self, claim: &Mark) -> Result<(), Trouble> {
        let state = self.ask(read(self.worker, claim.lane, None)).await?;
        let last = state.map_or(0, |(_, last)| last);
        if last < claim.number { Err(lost(claim.lane, claim.number, last).into()) } else { Ok(()) }
    }

    async fn ask(&self, read: Job<'_>) -> Result<Option<(i64, i64)>, Trouble> {
        let answers = pipeline::run(&self.session, Part::Apart, &[read]).await?;
        state_of(answers.first().ok_or_else(|| damaged("an answer"))?)
    }
}

/// Reads the row of a lane; see [`state_of`].
pub(crate) fn read(worker: WorkerId, lane: u16, place: Option<String>) -> Job<'static> {
    let params = vec![one(worker.0), one(lane.cast_signed()), one(place)];
    Job { sql: Sql::Lane, what: "reading the lane", params }
}

/// What [`read`] has found: epoch and last number.
pub(crate) fn state_of(answer: &Answer) -> Result<Option<(i64, i64)>, Trouble> {
    let Some(row) = answer.rows.first() else { return Ok(None) };
    let mut row = Columns::of(row);
    Ok(Some((row.next()?, row.next()?)))
}
