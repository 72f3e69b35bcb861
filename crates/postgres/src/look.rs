//! Registering, the look once a second, and taking over lost workers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use stepfast_core::clock::Timestamp;
use stepfast_core::record::{Detail, ExecutionId};
use stepfast_core::store::{Look, Registration, Seen, StoreError};
use stepfast_core::write::WorkerId;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::apply::one;
use crate::background::Background;
use crate::claim::texts;
use crate::connect::{Connector, Role, Session};
use crate::error::{Trouble, damaged};
use crate::pipeline::{self, Answer, Job, Part};
use crate::read::Reader;
use crate::rows::{Columns, request_kind};
use crate::statements::{CONTROL, Sql, TAKEOVER};
use crate::takeover;
use crate::types::{Instant, key, uuid};

/// A worker looks for satisfied waits that nobody has woken at every so many looks.
const LOOKS_PER_SWEEP: u64 = 60;

/// Who looks keeps this of its looks.
#[derive(Debug, Default)]
struct Looker {
    looks: u64,
    /// Leases of other workers, and at how many further looks they had not changed.
    leases: HashMap<WorkerId, (Timestamp, u32)>,
}

/// What is not bound to a lane: registrations and looks on one connection, takeovers on another, so that
/// renewing a lease never waits behind a takeover.
pub(crate) struct Control {
    connector: Arc<Connector>,
    background: Arc<Background>,
    looking: Mutex<Option<Session>>,
    taking_over: Mutex<Option<Session>>,
    lookers: StdMutex<HashMap<WorkerId, Looker>>,
}

/// An answer of look.sql.
struct View {
    seen: Seen,
    lost_owners: Vec<i64>,
    /// Other workers: lease, and whether it has run out.
    others: Vec<(WorkerId, Timestamp, bool)>,
}

impl Control {
    pub(crate) fn new(connector: Arc<Connector>, background: Arc<Background>) -> Self {
        Self {
            connector,
            background,
            looking: Mutex::default(),
            taking_over: Mutex::default(),
            lookers: StdMutex::default(),
        }
    }

    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.connector.options().clock.as_ref().map(|clock| clock.now())
    }

    pub(crate) fn lease_micros(&self) -> i64 {
        i64::try_from(self.connector.options().lease.as_micros()).unwrap_or(i64::MAX / 2)
    }

    /// Takes the connection out of its place, or makes it.
    async fn session(&self, kept: Option<Session>, statements: &[Sql]) -> Result<Session, StoreError> {
        match kept.filter(|session| !session.is_closed()) {
            Some(session) => Ok(session),
            None => {
                Session::open(&self.connector, self.background.runtime(), Role::Control, statements).await
            }
        }
    }

    async fn ask(&self, job: Job<'_>) -> Result<Answer, StoreError> {
        let mut place = self.looking.lock().await;
        let session = self.session(place.take(), CONTROL).await?;
        let answers = pipeline::run(&session, Part::Apart, &[job]).await.map_err(unavailable)?;
        *place = Some(session);
        answers.into_iter().next().ok_or_else(|| damaged("an answer"))
    }

    /// See [`Store::register`](stepfast_core::Store::register).
    pub(crate) async fn register(&self, lanes: u16) -> Result<Registration, StoreError> {
        let params = vec![one(i32::from(lanes)), one(self.now().map(Instant)), one(self.lease_micros())];
        let answer = self.ask(Job { sql: Sql::Register, what: "registering a worker", params }).await?;
        stepfast_core::crash_point!("postgres registered");
        let mut row = Columns::of(answer.rows.first().ok_or_else(|| damaged("an answer"))?);
        Ok(Registration { worker: WorkerId(row.next()?), epoch: row.next()?, now: row.time()? })
    }

    /// See [`Store::close`](stepfast_core::Store::close).
    pub(crate) async fn close(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.lookers.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
        let mut place = self.taking_over.lock().await;
        let session = self.session(place.take(), TAKEOVER).await?;
        let result = async {
            if takeover::end_registration(&session, worker, None).await? {
                stepfast_core::crash_point!("postgres registration given up");
                let queued = takeover::requeue(&session, &[worker.0], 0).await?;
                // its last Wakes may have come too late for its lanes
                takeover::wake_satisfied(&session, self.now()).await?;
                Ok(queued)
            } else {
                Ok(0)
            }
        };
        let result = result.await;
        if result.is_ok() || pipeline::roll_back(&session).await {
            *place = Some(session);
        }
        result.map_err(unavailable)
    }

    /// See [`Store::look`](stepfast_core::Store::look). Also, whether there are other workers.
    pub(crate) async fn look(&self, look: &Look, reader: &Reader) -> Result<(Seen, bool), StoreError> {
        let params = vec![
            one(look.worker.0),
            one(look.epoch),
            one(self.now().map(Instant)),
            one(self.lease_micros()),
            one(look.watch.iter().map(|key| uuid(*key)).collect::<Vec<_>>()),
            texts(&look.workflows),
        ];
        let answer = self.ask(Job { sql: Sql::Look, what: "looking", params }).await?;
        let mut view = view(&answer)?;
        if view.seen.is_fenced {
            self.lookers.lock().unwrap_or_else(PoisonError::into_inner).remove(&look.worker);
            let seen = Seen { now: view.seen.now, is_fenced: true, ..Seen::default() };
            return Ok((seen, true));
        }
        if let Some(holds) = &look.holds {
            view.seen.strays = self.strays(look.worker, holds, reader).await?;
        }
        let (expired, is_sweep) = self.expired(look.worker, &view.others);
        if !expired.is_empty() || !view.lost_owners.is_empty() || is_sweep {
            view.seen.recovered = self.recover(&expired, view.lost_owners, is_sweep).await?;
            view.seen.has_ready |= view.seen.recovered > 0;
        }
        Ok((view.seen, !view.others.is_empty()))
    }

    async fn strays(
        &self,
        worker: WorkerId,
        holds: &[stepfast_core::Key],
        reader: &Reader,
    ) -> Result<Vec<stepfast_core::record::Record>, StoreError> {
        let params = vec![one(worker.0)];
        let answer = self.ask(Job { sql: Sql::Owned, what: "looking for strays", params }).await?;
        let holds: HashSet<_> = holds.iter().collect();
        let mut strays = Vec::new();
        for row in &answer.rows {
            let key = Columns::of(row).key()?;
            if !holds.contains(&key) {
                strays.push(ExecutionId::Key(key));
            }
        }
        if strays.is_empty() {
            return Ok(Vec::new());
        }
        let records = reader.load(&strays, Detail::Full).await?;
        Ok(records.into_iter().flatten().filter(|record| record.execution.owner == Some(worker)).collect())
    }

    /// Which workers are lost: their lease has run out, and the looker has renewed its own twice while
    /// theirs stayed the same. Also, whether the looker's turn to sweep has come.
    fn expired(
        &self,
        looker: WorkerId,
        others: &[(WorkerId, Timestamp, bool)],
    ) -> (Vec<(WorkerId, Timestamp)>, bool) {
        let mut lookers = self.lookers.lock().unwrap_or_else(PoisonError::into_inner);
        let looker = lookers.entry(looker).or_default();
        looker.looks += 1;
        let mut leases = HashMap::with_capacity(others.len());
        let mut expired = Vec::new();
        for &(worker, lease, is_over) in others {
            let renewals = match looker.leases.get(&worker) {
                Some((seen, renewals)) if *seen == lease => renewals + 1,
                _ => 0,
            };
            if is_over && renewals >= 2 {
                expired.push((worker, lease));
            }
            leases.insert(worker, (lease, renewals));
        }
        looker.leases = leases;
        (expired, looker.looks.is_multiple_of(LOOKS_PER_SWEEP))
    }

    /// Both steps of taking over. What is blocked is left to the next look: it sees the same again.
    async fn recover(
        &self,
        expired: &[(WorkerId, Timestamp)],
        mut lost: Vec<i64>,
        is_sweep: bool,
    ) -> Result<u64, StoreError> {
        let mut place = self.taking_over.lock().await;
        let session = self.session(place.take(), TAKEOVER).await?;
        let result = async {
            for &(worker, lease) in expired {
                if takeover::end_registration(&session, worker, Some(lease)).await? {
                    tracing::warn!(worker = worker.0, "a worker was lost; what it ran is made claimable");
                    lost.push(worker.0);
                }
            }
            if !expired.is_empty() {
                stepfast_core::crash_point!("postgres lost workers fenced");
            }
            let recovered = if lost.is_empty() { 0 } else { takeover::requeue(&session, &lost, 1).await? };
            if is_sweep || !expired.is_empty() {
                takeover::wake_satisfied(&session, self.now()).await?;
            }
            Ok(recovered)
        };
        let result: Result<u64, Trouble> = result.await;
        if result.is_ok() || pipeline::roll_back(&session).await {
            *place = Some(session);
        }
        match result {
            Ok(recovered) => Ok(recovered),
            Err(trouble) => match trouble.into_store_error() {
                StoreError::Blocked(reason) => {
                    tracing::debug!(reason, "taking over waits for the next look");
                    Ok(0)
                }
                error => Err(unavailable(error.into())),
            },
        }
    }

    /// The first step alone, for tests that interleave: see [`takeover::end_registration`].
    pub(crate) async fn end_registration(&self, worker: WorkerId) -> Result<bool, StoreError> {
        let mut place = self.taking_over.lock().await;
        let session = self.session(place.take(), TAKEOVER).await?;
        let result = takeover::end_registration(&session, worker, None).await;
        if result.is_ok() || pipeline::roll_back(&session).await {
            *place = Some(session);
        }
        result.map_err(Trouble::into_store_error)
    }

    /// The second step alone: see [`takeover::requeue`].
    pub(crate) async fn requeue(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.recover(&[], vec![worker.0], false).await
    }
}

/// Outside of flushes there is no item to blame: what is blocked or refused may be tried again.
fn unavailable(trouble: Trouble) -> StoreError {
    match trouble.into_store_error() {
        StoreError::Blocked(reason) | StoreError::Rejected(reason) => StoreError::Unavailable(reason),
        error => error,
    }
}

fn view(answer: &Answer) -> Result<View, StoreError> {
    let mut row = Columns::of(answer.rows.first().ok_or_else(|| damaged("an answer"))?);
    let now = row.time()?;
    let is_fenced = row.next()?;
    let asked: Vec<Uuid> = row.next::<Option<_>>()?.unwrap_or_default();
    let kinds: Vec<i16> = row.next::<Option<_>>()?.unwrap_or_default();
    let ended: Vec<Uuid> = row.next()?;
    let has_ready = row.next()?;
    let next_due = row.opt_time()?;
    let ids: Vec<i64> = row.next::<Option<_>>()?.unwrap_or_default();
    let leases: Vec<Instant> = row.next::<Option<_>>()?.unwrap_or_default();
    let expired: Vec<bool> = row.next::<Option<_>>()?.unwrap_or_default();
    let lost_owners = row.next()?;
    let requests = asked.into_iter().zip(kinds);
    Ok(View {
        seen: Seen {
            now,
            is_fenced,
            requests: requests
                .map(|(execution, kind)| Ok((key(execution), request_kind(kind)?)))
                .collect::<Result<_, StoreError>>()?,
            ended: ended.into_iter().map(key).collect(),
            strays: Vec::new(),
            has_ready,
            next_due,
            recovered: 0,
        },
        lost_owners,
        others: (ids.into_iter().zip(leases).zip(expired))
            .map(|((id, lease), is_over)| (WorkerId(id), lease.0, is_over))
            .collect(),
    })
}
