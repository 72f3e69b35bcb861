//! Registering, the look once a second, and taking over lost workers.

pub(crate) mod outage_guard;
pub(crate) mod queues;
pub(crate) mod takeover;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::queue::{QueueChange, QueueRow};
use stepfast_core::store::{
    Detail, ExecutionId, Heartbeat, Registration, RequestKind, HeartbeatReply, StoreError, WorkerId, WorkerInfo,
};
use tokio::sync::Mutex;
use tokio::time::Instant as Moment;
use uuid::Uuid;

use crate::conn::background::Background;
use crate::conn::connector::{Connector, Role};
use crate::conn::pipeline;
use crate::conn::pipeline::{QueryResult, Query, column, param};
use crate::conn::pipeline::{optional_text_array, text_array};
use crate::conn::session::TxPart;
use crate::conn::session::Session;
use crate::conn::statements::{CONTROL, Sql, TAKEOVER};
use crate::control::outage_guard::Continuity;
use crate::control::takeover::Ended;
use crate::error::{DbError, corrupt, query_error, unavailable_error};
use crate::lane::{self, Lanes, lost_history, parse_lane_state};
use crate::ownership;
use crate::ownership::{WindowRenewal, Ownership};
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::{Instant, key, uuid};
use crate::schema::{known, newest};

/// A worker looks for satisfied waits without a Wake, and for slots of executions that do not run, at every so many renewals.
const RENEWALS_PER_SWEEP: u64 = 60;

/// A worker searches for what a takeover that was cut short has left behind at so many renewals after it has come or
/// somebody has gone, and then at every so many. While somebody holds a snapshot a search takes longer and longer.
const RENEWALS_PER_SEARCH: u64 = 10;

/// Who looks keeps this of its renewals.
#[derive(Debug, Default)]
struct Looker {
    renewals: u64,
    /// How many it has made since the last one that missed somebody, or found something left behind.
    quiet: u64,
    /// Leases of other workers.
    leases: HashMap<WorkerId, Kept>,
    continuity: Continuity,
    /// What the last one has found.
    lost: Lost,
}

/// A lease as a looker has seen it.
#[derive(Clone, Copy, Debug)]
struct Kept {
    until: Timestamp,
    /// When it was seen first, by the looker's own clock.
    since: Moment,
    /// At how many further renewals it had not changed.
    renewals: u32,
}

/// Another worker as a look shows it.
#[derive(Clone, Copy, Debug)]
struct Other {
    worker: WorkerId,
    lease: Timestamp,
    /// How long a lease of it lasts, if it has said so.
    length: Option<Duration>,
    /// Its lease has run out by the server's clock.
    is_over: bool,
}

/// What is to be taken over.
#[derive(Debug, Default)]
struct Lost {
    /// Workers whose lease has run out, and that lease.
    expired: Vec<(WorkerId, Option<Timestamp>)>,
    /// Owners of executions that have no registration.
    owners: Vec<i64>,
    /// True if it is time to look for satisfied waits without a Wake, and for slots of executions that do not run.
    is_sweep: bool,
}

impl Lost {
    fn is_some(&self) -> bool {
        !self.expired.is_empty() || !self.owners.is_empty() || self.is_sweep
    }
}

/// What is not bound to a lane: registrations and looks on one connection, takeovers on another, so that
/// renewing a lease never waits behind a takeover.
pub(crate) struct Control {
    connector: Arc<Connector>,
    background: Arc<Background>,
    looking: Mutex<Option<Session>>,
    taking_over: Mutex<Option<Session>>,
    lookers: StdMutex<HashMap<WorkerId, Looker>>,
    windows: Arc<Ownership>,
    lanes: Arc<Lanes>,
}

/// An answer of look.sql.
struct View {
    seen: HeartbeatReply,
    lost_owners: Vec<i64>,
    others: Vec<Other>,
    has_company: bool,
}

impl Control {
    /// `looking` is the connection for looks, if it is there already.
    pub(crate) fn new(
        connector: Arc<Connector>,
        background: Arc<Background>,
        windows: Arc<Ownership>,
        lanes: Arc<Lanes>,
        looking: Option<Session>,
    ) -> Self {
        Self {
            connector,
            background,
            looking: Mutex::new(looking),
            taking_over: Mutex::default(),
            lookers: StdMutex::default(),
            windows,
            lanes,
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

    async fn ask(&self, job: Query<'_>) -> Result<QueryResult, StoreError> {
        self.ask_all(&[job]).await?.into_iter().next().ok_or_else(|| corrupt("an answer"))
    }

    /// The answers of one session, each as of when it was asked.
    async fn ask_all(&self, jobs: &[Query<'_>]) -> Result<Vec<QueryResult>, StoreError> {
        let mut place = self.looking.lock().await;
        let session = self.session(place.take(), CONTROL).await?;
        let answers = pipeline::run(&session, TxPart::Standalone, jobs).await.map_err(query_error)?;
        *place = Some(session);
        Ok(answers)
    }

    /// See [`Store::register`](stepfast_core::Store::register).
    pub(crate) async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        let window = ownership::current_window();
        let params = vec![
            param(i32::from(lanes)),
            param(self.now().map(Instant)),
            param(self.lease_micros()),
            param(info.host.as_str()),
            param(i64::from(info.pid)),
            param(info.engine.as_str()),
            param(info.app_version.as_deref()),
            text_array(&info.workflows),
            param(info.is_client),
            param(uuid(window.start)),
            param(uuid(window.end)),
            optional_text_array(info.queues.as_ref()),
            // a number that no other registration has, should the server lose this one and give its id again; takeovers
            // count on from it
            param(fastrand::i64(1..1 << 42) << 20),
            param(known()),
        ];
        let what = "registering a worker";
        let jobs = [
            Query { sql: Sql::Register, action: what, params },
            // as of after that, which may have waited
            Query { sql: Sql::Versions, action: what, params: Vec::new() },
        ];
        let answers = self.ask_all(&jobs).await?;
        stepfast_core::crash_point!("postgres registered");
        let [registered, versions] = &answers[..] else { return Err(corrupt("an answer")) };
        let Some(row) = registered.rows.first() else {
            let mut row = Columns::of(versions.rows.first().ok_or_else(|| corrupt("table shard"))?);
            let (oldest, version) = (row.next::<i32>()?, row.next::<i32>()?);
            return Err(StoreError::NewerSchema { found: oldest.max(version).into(), supported: newest() });
        };
        let mut row = Columns::of(row);
        let registration =
            Registration { worker: WorkerId(row.next()?), epoch: row.next()?, now: row.time()? };
        self.windows.add_worker(registration.worker, window);
        Ok(registration)
    }

    /// See [`Store::close`](stepfast_core::Store::close).
    pub(crate) async fn close(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.forget(worker);
        let mut place = self.taking_over.lock().await;
        let session = self.session(place.take(), TAKEOVER).await?;
        let result = async {
            if takeover::end_registrations(&session, &[(worker, None)]).await?.is_empty() {
                Ok(0)
            } else {
                stepfast_core::crash_point!("postgres registration given up");
                let queued = takeover::requeue(&session, &[worker.0], false, self.now()).await?;
                // its last Wakes may have come too late for its lanes
                takeover::wake_satisfied(&session, self.now()).await?;
                Ok(queued)
            }
        };
        let result = result.await;
        if result.is_ok() || pipeline::roll_back(&session).await {
            *place = Some(session);
        }
        result.map_err(unavailable_error)
    }

    /// See [`Store::change_queue`](stepfast_core::Store::change_queue).
    pub(crate) async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let mut place = self.taking_over.lock().await;
        let session = self.session(place.take(), TAKEOVER).await?;
        let result = queues::change(&session, change, self.now()).await;
        if result.is_ok() || pipeline::roll_back(&session).await {
            *place = Some(session);
        }
        result.map_err(DbError::into_store_error)
    }

    /// See [`Store::look`](stepfast_core::Store::look). Also, whether there are other workers.
    pub(crate) async fn look(&self, look: &Heartbeat, reader: &Reader) -> Result<(HeartbeatReply, bool), StoreError> {
        let sight = if look.renews_lease { self.windows.begin_renewal(look.worker) } else { WindowRenewal::default() };
        let is_search = look.renews_lease && self.with_looker(look.worker, |looker| looker.is_search_due());
        let params = vec![
            param(look.worker.0),
            param(look.epoch),
            param(self.now().map(Instant)),
            param(self.lease_micros()),
            param(look.watched.iter().map(|key| uuid(*key)).collect::<Vec<_>>()),
            text_array(&look.workflows),
            param(look.app_version.as_deref()),
            param(sight.window.as_ref().map(|keys| uuid(keys.start))),
            param(sight.window.as_ref().map(|keys| uuid(keys.end))),
            param(look.renews_lease),
            param(is_search),
            optional_text_array(look.queues.as_ref()),
        ];
        let mut jobs = vec![Query { sql: Sql::Look, action: "looking", params }];
        let idle = if look.renews_lease { self.lanes.take_idle_positions(look.worker) } else { Vec::new() };
        if !idle.is_empty() {
            let params = vec![
                param(look.worker.0),
                column(&idle, |mark| mark.lane.cast_signed()),
                column(&idle, |mark| mark.number),
                column(&idle, |mark| mark.ctid_hint.clone()),
            ];
            jobs.push(Query { sql: Sql::Behind, action: "comparing lanes", params });
        }
        let answers = self.ask_all(&jobs).await?;
        if let Some(row) = answers.get(1).and_then(|behind| behind.rows.first()) {
            let mut row = Columns::of(row);
            return Err(lost_history(row.next::<i16>()?.cast_unsigned(), row.next()?, row.next()?));
        }
        let mut view = view(answers.first().ok_or_else(|| corrupt("an answer"))?)?;
        if view.seen.is_fenced {
            self.forget(look.worker);
            let seen = HeartbeatReply { now: view.seen.now, is_fenced: true, ..HeartbeatReply::default() };
            return Ok((seen, true));
        }
        if let Some(keys) = sight.window {
            self.windows.set_window_end(look.worker, keys.end);
        }
        if !sight.to_index.is_empty() {
            self.enter(look.worker, &sight.to_index).await?;
        }
        if look.renews_lease {
            self.forget_claims(look.worker, sight.uncertain_claims).await?;
        }
        if let Some(holds) = &look.held {
            view.seen.unheld = self.strays(look.worker, holds, reader).await?;
        }
        if look.renews_lease {
            let lease = self.connector.options().lease;
            self.with_looker(look.worker, |looker| {
                let at = Moment::now();
                let may_judge = looker.continuity.renew(at, lease);
                view.seen.next_expiry_at =
                    looker.see(&view.others, view.lost_owners, may_judge, (view.seen.now, at));
                view.seen.has_dead_workers = looker.lost.is_some();
            });
        }
        Ok((view.seen, view.has_company))
    }

    fn with_looker<R>(&self, worker: WorkerId, f: impl FnOnce(&mut Looker) -> R) -> R {
        f(self.lookers.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_default())
    }

    /// A worker is gone.
    fn forget(&self, worker: WorkerId) {
        self.lookers.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
        self.windows.remove_worker(worker);
    }

    /// Enters what runs in the index of owners. What somebody has locked is left to the next look.
    async fn enter(&self, worker: WorkerId, old: &[Key]) -> Result<(), StoreError> {
        let keys: Vec<Uuid> = old.iter().map(|key| uuid(*key)).collect();
        let what = "entering what runs";
        self.ask(Query { sql: Sql::Enter, action: what, params: vec![param(worker.0), param(keys.clone())] }).await?;
        let answer =
            self.ask(Query { sql: Sql::Unentered, action: what, params: vec![param(worker.0), param(keys)] }).await?;
        let left = answer.rows.iter().map(|row| Columns::of(row).key()).collect::<Result<_, _>>()?;
        self.windows.record_indexed(worker, old, &left);
        Ok(())
    }

    /// Deletes the rows of claims that are of no use any more. `unsure`: claims of which it is asked whether they have
    /// happened.
    async fn forget_claims(&self, worker: WorkerId, unsure: Vec<i64>) -> Result<(), StoreError> {
        let what = "forgetting claims";
        if !unsure.is_empty() {
            let params = vec![param(worker.0), param(unsure.clone())];
            let answer = self.ask(Query { sql: Sql::ClaimedBy, action: what, params }).await?;
            let keys: Vec<Key> =
                answer.rows.iter().map(|row| Columns::of(row).key()).collect::<Result<_, _>>()?;
            self.windows.record_found_claims(worker, &unsure, keys.into_iter());
        }
        if let Some(number) = self.windows.take_finished_claims(worker) {
            let params = vec![param(worker.0), param(number)];
            self.ask(Query { sql: Sql::ForgetClaims, action: what, params }).await?;
        }
        Ok(())
    }

    async fn strays(
        &self,
        worker: WorkerId,
        holds: &[Key],
        reader: &Reader,
    ) -> Result<Vec<stepfast_core::store::Record>, StoreError> {
        let mut jobs = vec![Query { sql: Sql::Owned, action: "looking for strays", params: vec![param(worker.0)] }];
        // a claim that turns out to have happened must not be lost from here on
        let claims = self.lanes.claim_lane(worker);
        jobs.extend(claims.map(|lane| lane::lane_state_query(worker, lane, None)));
        let answers = self.ask_all(&jobs).await?;
        if let (Some(lane), Some(row)) = (claims, answers.get(1))
            && let Some((_, last)) = parse_lane_state(row).map_err(DbError::into_store_error)?
        {
            self.lanes.record_durable(worker, lane, last, None);
        }
        let answer = answers.first().ok_or_else(|| corrupt("an answer"))?;
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

    /// See [`Store::recover`](stepfast_core::Store::recover).
    pub(crate) async fn recover(&self, looker: WorkerId) -> Result<u64, StoreError> {
        let lost = {
            let mut lookers = self.lookers.lock().unwrap_or_else(PoisonError::into_inner);
            lookers.get_mut(&looker).map(|looker| std::mem::take(&mut looker.lost)).unwrap_or_default()
        };
        self.take_over(lost).await
    }

    /// Both steps of taking over. What is blocked is left to the next look: it sees the same again.
    async fn take_over(&self, lost: Lost) -> Result<u64, StoreError> {
        let Lost { expired, mut owners, is_sweep } = lost;
        let mut place = self.taking_over.lock().await;
        let session = self.session(place.take(), TAKEOVER).await?;
        let result = async {
            for Ended { worker, host, pid } in takeover::end_registrations(&session, &expired).await? {
                tracing::warn!(
                    worker = worker.0,
                    host,
                    pid,
                    "a worker was lost; what it ran is made claimable"
                );
                owners.push(worker.0);
            }
            let recovered = match owners.as_slice() {
                [] => 0,
                owners => takeover::requeue(&session, owners, true, self.now()).await?,
            };
            if is_sweep || !expired.is_empty() {
                takeover::wake_satisfied(&session, self.now()).await?;
            }
            if is_sweep {
                takeover::free_stray_slots(&session).await?;
            }
            Ok(recovered)
        };
        let result: Result<u64, DbError> = result.await;
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
                error => Err(unavailable_error(error.into())),
            },
        }
    }

    /// The first step alone, for tests that interleave: see [`takeover::end_registrations`].
    pub(crate) async fn end_registration(&self, worker: WorkerId) -> Result<bool, StoreError> {
        let mut place = self.taking_over.lock().await;
        let session = self.session(place.take(), TAKEOVER).await?;
        let result = takeover::end_registrations(&session, &[(worker, None)]).await;
        if result.is_ok() || pipeline::roll_back(&session).await {
            *place = Some(session);
        }
        result.map(|ended| !ended.is_empty()).map_err(DbError::into_store_error)
    }

    /// The second step alone: see [`takeover::requeue`].
    pub(crate) async fn requeue(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.take_over(Lost { owners: vec![worker.0], ..Lost::default() }).await
    }
}

impl Looker {
    fn is_search_due(&self) -> bool {
        self.quiet < RENEWALS_PER_SEARCH || self.renewals.is_multiple_of(RENEWALS_PER_SEARCH)
    }

    /// Notes which workers are lost: their lease has run out, and the looker has renewed its own twice while
    /// theirs stayed the same, and it `may_judge`. The server's clock may have been set back since a lease was written:
    /// so a lease has run out, too, when it has stayed the same for twice its length by the looker's clock. `now`: by the
    /// server's clock and by that one. Returns when the next lease runs out that has not been renewed since the last
    /// renewal.
    fn see(
        &mut self,
        others: &[Other],
        owners: Vec<i64>,
        may_judge: bool,
        (now, at): (Timestamp, Moment),
    ) -> Option<Timestamp> {
        self.renewals += 1;
        let mut leases = HashMap::with_capacity(others.len());
        let mut expired = Vec::new();
        let mut next = None;
        for &Other { worker, lease, length, is_over } in others {
            let kept = match self.leases.get(&worker) {
                Some(kept) if kept.until == lease => Kept { renewals: kept.renewals + 1, ..*kept },
                _ => Kept { until: lease, since: at, renewals: 0 },
            };
            let is_over = is_over || length.is_some_and(|length| at.duration_since(kept.since) > length * 2);
            if is_over && kept.renewals >= 2 && may_judge {
                expired.push((worker, Some(lease)));
            }
            if kept.renewals > 0 && lease > now {
                next = Some(next.map_or(lease, |other: Timestamp| other.min(lease)));
            }
            leases.insert(worker, kept);
        }
        let is_quiet = owners.is_empty() && self.leases.keys().all(|worker| leases.contains_key(worker));
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        self.leases = leases;
        self.lost = Lost { expired, owners, is_sweep: self.renewals.is_multiple_of(RENEWALS_PER_SWEEP) };
        next
    }
}

fn view(answer: &QueryResult) -> Result<View, StoreError> {
    let mut row = Columns::of(answer.rows.first().ok_or_else(|| corrupt("an answer"))?);
    let now = row.time()?;
    let is_fenced = row.next()?;
    let asked: Vec<Uuid> = row.next::<Option<_>>()?.unwrap_or_default();
    let kinds: Vec<i16> = row.next::<Option<_>>()?.unwrap_or_default();
    let ended: Vec<Uuid> = row.next()?;
    let has_ready = row.next()?;
    let next_due = row.opt_time()?;
    let overdue: Vec<Uuid> = row.next()?;
    let next_deadline = row.opt_time()?;
    let quarantined_until = row.opt_time()?;
    let ids: Vec<i64> = row.next::<Option<_>>()?.unwrap_or_default();
    let leases: Vec<Instant> = row.next::<Option<_>>()?.unwrap_or_default();
    let lengths: Vec<Option<i64>> = row.next::<Option<_>>()?.unwrap_or_default();
    let expired: Vec<bool> = row.next::<Option<_>>()?.unwrap_or_default();
    let has_company = row.next()?;
    let lost_owners = row.next()?;
    let oldest_engine = i64::from(row.next::<i32>()?);
    let requests = asked.into_iter().zip(kinds);
    Ok(View {
        seen: HeartbeatReply {
            now,
            is_fenced,
            requests: requests
                .filter_map(|(execution, kind)| {
                    Some((key(execution), RequestKind::from_number(kind.into())?))
                })
                .collect(),
            finished: ended.into_iter().map(key).collect(),
            unheld: Vec::new(),
            has_ready,
            next_due,
            expired: overdue.into_iter().map(key).collect(),
            next_deadline,
            quarantined_until,
            has_dead_workers: false,
            newer_schema: (oldest_engine > newest()).then(|| (oldest_engine, newest())),
            next_expiry_at: None,
        },
        lost_owners,
        has_company,
        others: (ids.into_iter().zip(leases).zip(lengths).zip(expired))
            .map(|(((id, lease), length), is_over)| Other {
                worker: WorkerId(id),
                lease: lease.0,
                length: length.map(|ms| Duration::from_millis(ms.unsigned_abs())),
                is_over,
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(id: i64, lease: i64, is_over: bool) -> Other {
        let (lease, length) = (Timestamp::from_micros(lease), Some(Duration::from_secs(3)));
        Other { worker: WorkerId(id), lease, length, is_over }
    }

    #[test]
    fn a_lease_runs_out_by_the_lookers_clock_too() {
        let (mut looker, begun) = (Looker::default(), Moment::now());
        // it ends in an hour by a clock that was set back
        let mut is_lost = |second: u64, lease: i64, may_judge: bool| {
            let now = (Timestamp::from_micros(0), begun + Duration::from_secs(second));
            looker.see(&[other(1, 3_600_000_000 + lease, false)], Vec::new(), may_judge, now);
            looker.lost.is_some()
        };
        assert!(!(0..=6).any(|second| is_lost(second, 0, true)));
        assert!(is_lost(7, 0, true));
        // renewed, and looked at late
        assert!(!is_lost(8, 1, true) && !is_lost(20, 1, true) && is_lost(21, 1, true));
        assert!(
            !is_lost(22, 2, true) && !is_lost(40, 2, false) && !is_lost(41, 2, false) && is_lost(42, 2, true)
        );
    }

    #[test]
    fn what_is_left_behind_is_searched_for_when_somebody_has_gone_and_now_and_then() {
        let (mut looker, begun) = (Looker::default(), Moment::now());
        let mut searches = |renewals: u64, others: &[i64], owners: &[i64]| {
            let others: Vec<_> = others.iter().map(|id| other(*id, 0, false)).collect();
            let mut searches = 0;
            for _ in 0..renewals {
                searches += u64::from(looker.is_search_due());
                looker.see(&others, owners.to_vec(), true, (Timestamp::from_micros(0), begun));
            }
            searches
        };
        assert_eq!(searches(10, &[1, 2], &[]), 10, "as long as it is new");
        assert_eq!(searches(50, &[1, 2], &[]), 5, "when nothing happens");
        assert_eq!(searches(20, &[1, 2, 3], &[]), 2, "when somebody comes");
        assert!(searches(11, &[1, 3], &[]) >= 10, "when somebody has gone");
        searches(20, &[1, 3], &[]);
        searches(1, &[1, 3], &[2]);
        assert_eq!(searches(10, &[1, 3], &[]), 10, "when something was left behind");
    }
}
