//! The worker: a thread that looks after an engine's registration, and claims executions to run.
//!
//! Three loops, so that none waits for another: looks, which renew the registration; claims; and taking over what
//! lost workers have left. They end together when the registration does, and begin anew under the next one.

mod launch;
mod lost_claims;
mod quarantine;
mod shutdown;
mod unclaimable;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{MutexGuard, oneshot};
use tokio::time::Instant;

use crate::clock::{Timestamp, since_boot};
use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::runtime::inner::{Core, Places};
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::run::{Interrupt, Run};
use crate::store::{Changed, Claim, Claimed, EXPIRED, Look, Record, RequestKind, Seen, StoreError};
use crate::thread::spawn_on_thread;
use crate::worker::launch::{adopt, generations};
use crate::worker::lost_claims::Strays;
use crate::worker::quarantine::Quarantine;

/// How often the worker looks, whatever happens, and renews.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same for a client that nobody waits with: its lease is a day.
const CLIENT_LOOKS_EVERY: Duration = Duration::from_hours(1);
/// A worker looks for strays at every so many renewals, although it knows of none.
const RENEWALS_PER_AUDIT: u32 = 60;
/// Of its time a worker spends at most one part in so many on looks that others have caused.
const LOOK_SHARE: u32 = 4;
/// So many who wait for executions elsewhere ask whenever something may have changed.
const FEW: usize = 64;
/// How often they do, at most.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// When the look comes that tells whether there is anything else.
const LOOK_AFTER_ASKING: Duration = Duration::from_millis(5);
/// When it is seen whether a claim has left something because of its bytes.
const NEXT_CLAIM_AFTER: Duration = Duration::from_millis(5);
/// A look for a deadline comes so long after it, by any estimate.
const EXACTNESS: Duration = Duration::from_millis(1);
/// Pause after a claim that failed, or a takeover.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Pause before another try to register.
const REGISTER_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Most executions in a claim.
const CLAIM: usize = 1_000;
/// Most bytes of inputs and checkpoints in a claim.
const CLAIM_BYTES: usize = 16 * 1024 * 1024;

pub(crate) struct Worker {
    pub(crate) core: Arc<Core>,
    pub(crate) lanes_ended: Vec<oneshot::Receiver<()>>,
    looks: Looks,
    claims: Claims,
}

/// Starts the worker's thread. Its first look, which shows what lost workers left, comes at once.
pub(crate) fn spawn(
    core: Arc<Core>,
    claim_lane: u16,
    lanes_ended: Vec<oneshot::Receiver<()>>,
    shutdown: oneshot::Receiver<ShutdownRequest>,
) -> Result<(), Error> {
    let mut worker = Worker {
        looks: Looks::new(core.clone()),
        claims: Claims::new(core.clone(), claim_lane),
        core,
        lanes_ended,
    };
    spawn_on_thread("stepfast-worker".into(), async move {
        let core = worker.core.clone();
        if let Err(panic) = AssertUnwindSafe(worker.run(shutdown)).catch_unwind().await {
            core.poison(&format!("the worker failed: {}", Failure::from_panic(&*panic).message));
        }
        core.worker.stopped.send_replace(true);
        core.watch.notify_all();
    })
}

impl Worker {
    /// Works until it is told to end, whatever the store is doing then.
    async fn run(&mut self, shutdown: oneshot::Receiver<ShutdownRequest>) {
        let shutdown = tokio::select! {
            biased;
            shutdown = shutdown => shutdown,
            () = self.work() => return,
        };
        if let Ok(shutdown) = shutdown {
            self.shut_down(shutdown).await;
        }
    }

    async fn work(&mut self) {
        let core = self.core.clone();
        loop {
            if core.worker.is_fenced.load(SeqCst) {
                self.register_anew().await;
            }
            tokio::select! {
                () = self.looks.run() => {}
                () = self.claims.run() => {}
                () = take_over(&core) => {}
                () = crate::worker::unclaimable::tell(&core), if !core.info.is_client => {}
                () = core.worker.fenced.notified() => {}
            }
        }
    }

    /// Another worker has taken over, or the registration is gone: what runs here is lost to it. Callers'
    /// Writes go on under a new registration.
    pub(crate) async fn register_anew(&mut self) {
        let core = self.core.clone();
        tracing::warn!("this worker was taken over; registering anew");
        let lanes = core.lanes();
        let over = core.registration().worker;
        for lane in lanes {
            lane.end_generation(over);
        }
        // what starts from here on belongs to the registration to come
        for run in core.runs.all() {
            if run.is_lost() {
                run.interrupt(Interrupt::Lost);
            }
        }
        let (asked_at, asked_since_boot, registration) = loop {
            // a lane may have heard of an older fence only now: then this registration is alive, and would
            // keep what it owns
            let closed = core.store.close(over).await;
            let (asked_at, asked_since_boot) = (Instant::now(), since_boot());
            let registered = match closed {
                Ok(()) => core.store.register(self.claims.lane + 1, &core.info).await,
                Err(error) => Err(error),
            };
            match registered {
                Ok(registration) => break (asked_at, asked_since_boot, registration),
                Err(StoreError::NewerSchema { found, supported }) => {
                    core.expel((found, supported));
                    // its end comes
                    return std::future::pending().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot register anew");
                    tokio::time::sleep(REGISTER_AGAIN_AFTER).await;
                }
            }
        };
        tracing::info!(worker = registration.worker.0, "registered anew");
        *core.registration.write().unwrap_or_else(std::sync::PoisonError::into_inner) = registration;
        core.store_time.correct(asked_at, registration.now);
        core.lease.renew(asked_since_boot);
        core.worker.is_fenced.store(false, SeqCst);
        self.looks = Looks::new(core.clone());
        self.claims = Claims::new(core.clone(), self.claims.lane);
        for lane in lanes {
            lane.rebind(registration);
        }
    }
}

/// The looks under one registration.
struct Looks {
    core: Arc<Core>,
    strays: Strays,
    /// A search for strays waits for the end of a claim.
    is_search_put_off: bool,
    /// The last look got no answer.
    is_unanswered: bool,
    /// How often it has renewed, and when it did last, or tried.
    renewals: u32,
    renewed_at: Option<Instant>,
    /// When a worker counts as lost unless it renews.
    judge_at: Option<Instant>,
    /// When a look comes because others have changed something.
    look_again_at: Option<Instant>,
    /// When a look that others cause may come.
    may_look_at: Instant,
    /// When those who wait may ask because of what others have changed.
    may_ask_at: Instant,
}

impl Looks {
    fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            strays: Strays::default(),
            is_search_put_off: false,
            is_unanswered: false,
            renewals: 0,
            renewed_at: None,
            judge_at: None,
            look_again_at: None,
            may_look_at: Instant::now(),
            may_ask_at: Instant::now(),
        }
    }

    async fn run(&mut self) {
        let core = self.core.clone();
        let signals = &core.worker;
        loop {
            self.strays.heed(&signals.lost_claims);
            let is_idle_client = core.info.is_client && !core.watch.is_used();
            let every = if is_idle_client { CLIENT_LOOKS_EVERY } else { LOOK_EVERY };
            let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
            let is_renewal = self.renewed_at.is_none_or(|at| at.elapsed() >= every) || is_over(self.judge_at);
            // a deadline is judged by a look
            let is_due = is_over(self.look_again_at) | signals.take_deadline(core.now());
            if is_renewal || is_due || signals.is_look_wanted.swap(false, SeqCst) {
                // a look never waits for a claim: it renews the registration
                self.look(is_renewal, signals.claiming.try_lock().ok()).await;
            }
            if signals.is_look_wanted.load(SeqCst) {
                continue;
            }
            let next = self.renewed_at.map_or_else(Instant::now, |at| at + every);
            let next = [self.judge_at, self.look_again_at].into_iter().flatten().fold(next, Instant::min);
            let deadline_in =
                signals.deadline_at.load(SeqCst).saturating_sub(core.now().as_micros()).max(0) as u64;
            let next = next.min(Instant::now() + Duration::from_micros(deadline_in).min(every) + EXACTNESS);
            tokio::select! {
                () = signals.look.notified() => {}
                () = tokio::time::sleep_until(next) => {}
                guard = signals.claiming.lock(), if self.is_search_put_off => self.look(false, Some(guard)).await,
                changed = core.store.changed() => self.heed(&changed, next).await,
            }
        }
    }

    /// Something may have changed elsewhere.
    async fn heed(&mut self, changed: &Changed, next: Instant) {
        let core = &self.core;
        if changed.has_ready {
            core.wake_worker(true);
        }
        if !changed.has_more {
            return;
        }
        core.queues.has_left();
        if core.watch.count() > FEW {
            // thousands of waiters make a look long: the rest of the time is for what else there is to do
            tokio::time::sleep_until(self.may_look_at.min(next)).await;
            core.worker.is_look_wanted.store(true, SeqCst);
            return;
        }
        // a few ask by themselves, and together; what a look can tell beside that must not be in their way
        tokio::time::sleep_until(self.may_ask_at).await;
        core.watch.notify_all();
        let now = Instant::now();
        self.may_ask_at = now + ASK_EVERY;
        let look_at = self.may_look_at.max(now + LOOK_AFTER_ASKING);
        self.look_again_at = Some(self.look_again_at.map_or(look_at, |at| at.min(look_at)));
    }

    /// The look: passes on what is asked for, and renews if that is due. Searches for strays if that is due and, as
    /// `no_claim` says, no claim is under way.
    async fn look(&mut self, is_renewal: bool, no_claim: Option<MutexGuard<'_, ()>>) {
        let core = self.core.clone();
        let (asked_at, asked_since_boot) = (Instant::now(), since_boot());
        self.look_again_at = None;
        if is_renewal {
            self.renewed_at = Some(asked_at);
            self.judge_at = None;
            self.renewals = self.renewals.wrapping_add(1);
        }
        if core.is_poisoned() {
            return;
        }
        if is_renewal && self.renewals.is_multiple_of(RENEWALS_PER_AUDIT) {
            self.strays.seek([]);
        }
        let registration = core.registration();
        let no_claim = no_claim.filter(|_| self.strays.are_sought());
        self.is_search_put_off = self.strays.are_sought() && no_claim.is_none();
        let holds = no_claim.as_ref().map(|_| core.runs.held());
        let generations = generations(&core);
        let look = Look {
            worker: registration.worker,
            epoch: registration.epoch,
            is_renewal,
            watch: core.watch.keys(),
            holds,
            workflows: core.info.workflows.clone(),
            app_version: core.info.app_version.clone(),
            queues: core.info.queues.clone(),
        };
        let seen = match core.store.look(&look).await {
            Ok(seen) => seen,
            Err(error) => {
                let Some(error) = core.end_by(error) else { return };
                if !std::mem::replace(&mut self.is_unanswered, true) {
                    tracing::warn!(%error, "the worker's look failed; trying again");
                }
                return;
            }
        };
        if std::mem::take(&mut self.is_unanswered) {
            tracing::info!("the worker's looks succeed again");
        }
        self.may_look_at = Instant::now() + asked_at.elapsed() * LOOK_SHARE;
        core.store_time.correct(asked_at, seen.now);
        if seen.is_fenced {
            core.fenced();
            return;
        }
        // before the renewal, with which bodies begin that have waited for it
        for (key, kind) in &seen.requests {
            if let (RequestKind::Cancel, Some(run)) = (kind, core.runs.get(*key)) {
                run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
            }
        }
        if is_renewal {
            core.lease.renew(asked_since_boot);
        }
        self.pass_on(seen, &look, &generations);
    }

    fn pass_on(&mut self, seen: Seen, look: &Look, generations: &[u32]) {
        let core = self.core.clone();
        for key in seen.ended {
            core.watch.notify(key);
        }
        if let Some(versions) = seen.newer_schema {
            core.outdate(versions);
        }
        if let Some(held) = &look.holds {
            self.adopt_strays(held, seen.strays, generations);
        }
        if seen.has_lost {
            core.worker.take_over.notify_one();
        }
        if let Some(at) = seen.judge_at {
            // after that time by any estimate, and not all workers at once
            let pause = at.since(seen.now) + Duration::from_millis(20 + fastrand::u64(..80));
            self.judge_at = Some(Instant::now() + pause);
        }
        if let Some(at) = seen.next_deadline {
            core.worker.deadline_at.fetch_min(at.as_micros(), SeqCst);
        }
        if !seen.expired.is_empty() {
            if seen.expired.len() >= EXPIRED {
                // there may be more
                core.worker.is_look_wanted.store(true, SeqCst);
            }
            core.runtime.spawn(expire(core.clone(), seen.expired));
        }
        for (signal, time) in
            [(&core.worker.due_at, seen.next_due), (&core.worker.quarantined_until, seen.quarantined_until)]
        {
            if let Some(time) = time {
                signal.fetch_min(time.as_micros(), SeqCst);
                core.wake_worker(false);
            }
        }
        if seen.has_ready {
            core.wake_worker(true);
        }
    }

    /// Adopts what a claim has taken whose answer was lost. The store has listed `seen`: owned, and not `held`.
    fn adopt_strays(&mut self, held: &[Key], seen: Vec<Record>, generations: &[u32]) {
        let core = self.core.clone();
        let seen: Vec<Record> =
            seen.into_iter().filter(|record| !core.runs.holds(record.execution.key)).collect();
        let strays = self.strays.confirm(held, seen.iter().map(|record| record.execution.key));
        for record in seen.into_iter().filter(|record| strays.contains(&record.execution.key)) {
            tracing::info!(execution = %record.execution.key, "adopted after a claim whose outcome was unknown");
            core.add_running(1);
            adopt(&core, record, generations);
        }
        if self.strays.are_suspected() {
            core.worker.is_look_wanted.store(true, SeqCst);
        }
    }
}

/// Ends what nobody runs although its deadline has passed. What fails is seen again by a later look.
async fn expire(core: Arc<Core>, expired: Vec<Key>) {
    let ends = expired.into_iter().map(|key| {
        let core = &core;
        async move {
            if let Err(error) = core.request_of(key, RequestKind::Expire).await {
                tracing::debug!(execution = %key, %error, "cannot end an execution whose deadline has passed");
            }
        }
    });
    futures_util::future::join_all(ends).await;
}

/// What a claim has brought.
struct Taken {
    runs: Vec<Arc<Run>>,
    /// There was no place for more, or it was not their turn.
    is_full: bool,
}

/// The claims under one registration.
struct Claims {
    core: Arc<Core>,
    /// The registration's lane for claims.
    lane: u16,
    count: i64,
    quarantine: Quarantine,
    /// When something may be left of what the last claim could not bring.
    claim_again_at: Option<Instant>,
    /// When the rate of a queue allows for more.
    rated_until: Option<Timestamp>,
}

impl Claims {
    fn new(core: Arc<Core>, lane: u16) -> Self {
        Self { core, lane, count: 0, quarantine: Quarantine::new(), claim_again_at: None, rated_until: None }
    }

    async fn run(&mut self) {
        let core = self.core.clone();
        let signals = &core.worker;
        loop {
            let is_timer_due = signals.take_due_timer(core.now());
            let is_again = self.claim_again_at.take_if(|at| *at <= Instant::now()).is_some();
            let is_rated = self.rated_until.take_if(|at| *at <= core.now()).is_some();
            if signals.is_ready.swap(false, SeqCst) || is_timer_due || is_again || is_rated {
                self.claim(is_timer_due).await;
            }
            if signals.quarantined_until.load(SeqCst) <= core.now().as_micros() {
                self.claim_from_quarantine().await;
            }
            if signals.is_ready.load(SeqCst) {
                continue;
            }
            let due_at = signals.due_at.load(SeqCst).min(signals.quarantined_until.load(SeqCst));
            let due_at = self.rated_until.map_or(due_at, |at| at.as_micros().min(due_at));
            let due_in = due_at.saturating_sub(core.now().as_micros()).max(0) as u64;
            let pause = Duration::from_micros(due_in).clamp(Duration::from_micros(200), LOOK_EVERY);
            let next = Instant::now() + pause;
            tokio::select! {
                () = signals.wanted.notified() => {}
                () = tokio::time::sleep_until(self.claim_again_at.map_or(next, |at| at.min(next))) => {}
            }
        }
    }

    /// Claims as many executions as there are places for, or as there are.
    async fn claim(&mut self, for_timers: bool) {
        loop {
            let Some(taken) = self.take(CLAIM, false).await else { break };
            if !taken.is_full {
                // of more than a few bytes there may be more; that must not be in the way of what has just come
                self.claim_again_at = (!taken.runs.is_empty()).then(|| Instant::now() + NEXT_CLAIM_AFTER);
                break;
            }
        }
        if for_timers {
            // timers beyond those that were due: when is the next one?
            self.core.want_look();
        }
    }

    /// Claims what is to be tried of what is in quarantine.
    async fn claim_from_quarantine(&mut self) {
        let core = self.core.clone();
        // the next look tells anew; and the end of what is tried does
        core.worker.quarantined_until.store(i64::MAX, SeqCst);
        let room = self.quarantine.room(&core);
        if room == 0 {
            return;
        }
        if let Some(Taken { runs, .. }) = self.take(room, true).await {
            core.worker.is_trying.store(!runs.is_empty(), SeqCst);
            self.quarantine.try_out(&runs, core.now());
            if !runs.is_empty() {
                // when may the next one be tried?
                core.want_look();
            }
        }
    }

    /// Returns the workflows to claim of, and how many at most: those that hold a thread only while there is room for
    /// them. `None` if there is room for none.
    fn claimable(&self, most: usize) -> Option<(Arc<[Arc<str>]>, usize)> {
        let core = &self.core;
        let all = &core.info.workflows;
        let is_in_thread = |name: &Arc<str>| core.definitions.get(name).is_some_and(|it| it.is_in_thread());
        if core.options.threads.is_none() || !all.iter().any(is_in_thread) {
            return Some((all.clone(), most));
        }
        let room = core.read_ahead.room();
        if room < most {
            core.read_ahead.await_room();
        }
        if room > 0 {
            return Some((all.clone(), most.min(room)));
        }
        let others: Arc<[Arc<str>]> = all.iter().filter(|name| !is_in_thread(name)).cloned().collect();
        (!others.is_empty()).then_some((others, most))
    }

    /// Claims once. `None` if nothing can be claimed at the moment.
    async fn take(&mut self, most: usize, from_quarantine: bool) -> Option<Taken> {
        let core = self.core.clone();
        if core.info.workflows.is_empty() || core.is_poisoned() {
            return None;
        }
        let Some((workflows, most)) = self.claimable(most) else {
            core.worker.is_backed_up.store(true, SeqCst);
            return None;
        };
        // taken before the claim: what is started here meanwhile must not take the same places
        let Some(places) = Places::take(&core, most) else {
            core.note_full();
            return None;
        };
        let claiming = core.worker.claiming.lock().await;
        let registration = core.registration();
        let claim = Claim {
            worker: registration.worker,
            lane: self.lane,
            epoch: registration.epoch,
            number: self.count + 1,
            limit: places.count(),
            max_bytes: CLAIM_BYTES,
            workflows,
            app_version: core.info.app_version.clone(),
            queues: core.info.queues.clone(),
            from_quarantine,
        };
        let generations = generations(&core);
        let freed = core.worker.freed_slots.load(SeqCst);
        let claimed = match core.store.claim(&claim).await {
            // a lane has heard meanwhile that the registration is over
            Ok(_) if core.worker.is_fenced.load(SeqCst) => Err(StoreError::Fenced),
            claimed => claimed,
        };
        places.keep(claimed.as_ref().map_or(0, |claimed| claimed.records.len()));
        match claimed {
            Ok(Claimed { records, has_more, is_limited, again_at }) => {
                if !from_quarantine {
                    self.rated_until = again_at;
                }
                if is_limited {
                    core.await_slot(freed);
                }
                if !records.is_empty() {
                    crate::crash_point!("claimed");
                    core.queues.has_left();
                }
                self.count += 1;
                let is_full = has_more || records.len() >= claim.limit;
                if !from_quarantine {
                    core.worker.is_backed_up.store(is_full, SeqCst);
                }
                let mut runs = Vec::with_capacity(records.len());
                for record in records {
                    runs.extend(adopt(&core, record, &generations));
                    crate::crash_point!("adopted");
                }
                Some(Taken { runs, is_full })
            }
            Err(StoreError::Fenced) => {
                core.fenced();
                None
            }
            Err(error) => {
                let error = core.end_by(error)?;
                // the claim may have happened: its number is used up, the next look adopts what it took
                tracing::debug!(%error, "a claim failed");
                self.count += i64::from(matches!(error, StoreError::Unavailable(_)));
                core.worker.lost_claims.lock().get_or_insert_default().extend(core.runs.ending());
                drop(claiming);
                tokio::time::sleep(AGAIN_AFTER).await;
                core.want_look();
                None
            }
        }
    }
}

/// Takes over, whenever a look has seen lost workers.
async fn take_over(core: &Core) {
    loop {
        core.worker.take_over.notified().await;
        match core.store.recover(core.registration().worker).await {
            Ok(0) => {}
            Ok(recovered) => {
                crate::crash_point!("look recovered");
                tracing::info!(recovered, "executions of lost workers can be claimed again");
                core.wake_worker(true);
            }
            Err(error) => {
                if let Some(error) = core.end_by(error) {
                    tracing::debug!(%error, "taking over waits for the next look");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
        // what is in quarantine of it has a time
        core.want_look();
    }
}
