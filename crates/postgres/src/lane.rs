//! [`Lane`]: a connection of its own, and the row that fences whatever is sent on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use stepfast_core::store::StoreError;
use stepfast_core::write::WorkerId;
use tokio::runtime::{Handle, Id};
use tokio::sync::Mutex;

use crate::connect::{Connector, Role, Session};
use crate::error::{Trouble, damaged};
use crate::pipeline::{self, Answer, Job, Part, one};
use crate::rows::Columns;
use crate::statements::Sql;

type Slot = Arc<Mutex<Option<Lane>>>;

/// The lanes of this store's workers, flushes' and claims' alike.
#[derive(Default)]
pub(crate) struct Lanes(StdMutex<HashMap<(WorkerId, u16), Slot>>);

impl Lanes {
    /// The place of a lane. Whoever uses it takes it out and puts it back when its connection is clean, so a call
    /// that is given up half-way leaves no connection in an unknown state behind.
    pub(crate) fn slot(&self, worker: WorkerId, number: u16) -> Slot {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.entry((worker, number)).or_default().clone()
    }

    /// Closes the connections of a worker.
    pub(crate) fn forget(&self, worker: WorkerId) {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|(owner, _), _| *owner != worker);
    }
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
                Ok(Self { session, runtime, worker, number, place: None })
            }
        }
    }

    /// False once its connection is closed.
    pub(crate) fn is_usable(&self) -> bool {
        !self.session.is_closed()
    }

    /// The compare-and-set that a flush or claim begins with. `has_gaps`: numbers may be left out.
    pub(crate) fn fence(&self, epoch: i64, number: i64, has_gaps: bool) -> Job<'static> {
        let params = vec![
            one(self.worker.0),
            one(self.number.cast_signed()),
            one(epoch),
            one(number),
            one(self.place.clone()),
            one(has_gaps),
        ];
        Job { sql: Sql::Fence, what: "taking the lane's next number", params }
    }

    /// Of these jobs, which are durable, one was the fence.
    pub(crate) fn fenced(&mut self, jobs: &[Job<'_>], answers: &[Answer]) {
        let fence = jobs.iter().position(|job| job.sql == Sql::Fence).and_then(|i| answers.get(i));
        self.place = fence.and_then(|fence| fence.rows.first()).and_then(|row| row.try_get(0).ok());
    }

    /// Reads its row; see [`state_of`].
    pub(crate) fn read(&self) -> Job<'static> {
        let params = vec![one(self.worker.0), one(self.number.cast_signed()), one(self.place.clone())];
        Job { sql: Sql::Lane, what: "reading the lane", params }
    }

    /// Its epoch and its last number, if there is such a lane.
    pub(crate) async fn state(&self) -> Result<Option<(i64, i64)>, Trouble> {
        let answers = pipeline::run(&self.session, Part::Apart, &[self.read()]).await?;
        state_of(answers.first().ok_or_else(|| damaged("an answer"))?)
    }
}

/// What [`Lane::read`] has found: epoch and last number.
pub(crate) fn state_of(answer: &Answer) -> Result<Option<(i64, i64)>, Trouble> {
    let Some(row) = answer.rows.first() else { return Ok(None) };
    let mut row = Columns::of(row);
    Ok(Some((row.next()?, row.next()?)))
}
