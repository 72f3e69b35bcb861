//! [`Heartbeats`]: the worker's loop that renews its registration and applies what the store reports.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::time::Instant;

use crate::clock::time_since_boot;
use crate::failure::Failure;
use crate::key::Key;
use crate::runtime::inner::Core;
use crate::runtime::run::Interrupt;
use crate::store::{Hint, MAX_EXPIRED, Heartbeat, Record, RequestKind, HeartbeatReply};
use crate::worker::launch::{launch, lane_generations};
use crate::worker::lost_claims::LostClaims;

/// The interval of the heartbeats that renew the registration.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The interval of a client without waiters: its lease is a day.
const CLIENT_LOOKS_EVERY: Duration = Duration::from_hours(1);
/// Number of renewals between two searches for lost claims that nothing else has caused.
const RENEWALS_PER_AUDIT: u32 = 60;
/// The least pause after a heartbeat before a hint causes the next one, as a multiple of what the heartbeat took.
const LOOK_SHARE: u32 = 4;
/// Maximum number of waiters that are notified on every hint. More waiters are served by the next heartbeat.
const FEW: usize = 64;
/// The least interval between two notifications of waiters.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// The delay of the heartbeat that follows a notification of waiters, to find whatever else the hint was about.
const LOOK_AFTER_ASKING: Duration = Duration::from_millis(5);
/// The margin by which the heartbeat for a deadline comes after it, to be late by any estimate of the store's time.
const EXACTNESS: Duration = Duration::from_millis(1);

/// The heartbeats under one registration.
pub(super) struct Heartbeats {
    core: Arc<Core>,
    strays: LostClaims,
    /// Whether a search for lost claims waits for the end of a claim.
    is_search_put_off: bool,
    /// Whether the last heartbeat failed.
    is_unanswered: bool,
    /// Number of renewals.
    renewals: u32,
    renewed_at: Option<Instant>,
    /// When to renew next because another worker's lease may have run out by then.
    judge_at: Option<Instant>,
    /// When the heartbeat comes that a hint has caused.
    look_again_at: Option<Instant>,
    /// The earliest time of a heartbeat that a hint causes.
    may_look_at: Instant,
    /// The earliest time at which a hint may notify waiters.
    may_ask_at: Instant,
}

impl Heartbeats {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            strays: LostClaims::default(),
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

    pub(super) async fn run(&mut self) {
        let core = self.core.clone();
        let signals = &core.worker;
        loop {
            self.strays.search_if_reported(&signals.lost_claims);
            let is_idle_client = core.info.is_client && !core.watch.has_watchers();
            let every = if is_idle_client { CLIENT_LOOKS_EVERY } else { HEARTBEAT_INTERVAL };
            let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
            let is_renewal = self.renewed_at.is_none_or(|at| at.elapsed() >= every) || is_over(self.judge_at);
            // a heartbeat reports the executions whose deadlines have passed
            let is_due = is_over(self.look_again_at) | signals.take_deadline(core.now());
            if is_renewal || is_due || signals.is_look_wanted.swap(false, SeqCst) {
                // a heartbeat never waits for a claim, because it renews the registration
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
                changed = core.store.next_hint() => self.heed(&changed, next).await,
            }
        }
    }

    /// Reacts to a hint that other processes may have changed something.
    async fn heed(&mut self, changed: &Hint, next: Instant) {
        let core = &self.core;
        if changed.has_ready {
            core.wake_worker(true);
        }
        if !changed.has_other {
            return;
        }
        core.queues.has_left();
        if core.watch.count() > FEW {
            // with thousands of waiters a heartbeat takes long: leave most of the time to other work
            tokio::time::sleep_until(self.may_look_at.min(next)).await;
            core.worker.is_look_wanted.store(true, SeqCst);
            return;
        }
        // a few waiters read the database themselves, together; the heartbeat for everything else must not delay them
        tokio::time::sleep_until(self.may_ask_at).await;
        core.watch.notify_all();
        let now = Instant::now();
        self.may_ask_at = now + ASK_EVERY;
        let look_at = self.may_look_at.max(now + LOOK_AFTER_ASKING);
        self.look_again_at = Some(self.look_again_at.map_or(look_at, |at| at.min(look_at)));
    }

    /// Sends a heartbeat and applies the reply; renews the registration if `is_renewal`. Searches for lost claims if a
    /// search is due and `no_claim`, the lock that claims hold, proves that no claim is under way.
    async fn look(&mut self, is_renewal: bool, no_claim: Option<MutexGuard<'_, ()>>) {
        let core = self.core.clone();
        let (asked_at, asked_since_boot) = (Instant::now(), time_since_boot());
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
            self.strays.begin_search([]);
        }
        let registration = core.registration();
        let no_claim = no_claim.filter(|_| self.strays.is_searching());
        self.is_search_put_off = self.strays.is_searching() && no_claim.is_none();
        let holds = no_claim.as_ref().map(|_| core.runs.held());
        let generations = lane_generations(&core);
        let look = Heartbeat {
            worker: registration.worker,
            epoch: registration.epoch,
            renews_lease: is_renewal,
            watched: core.watch.keys(),
            held: holds,
            workflows: core.info.workflows.clone(),
            app_version: core.info.app_version.clone(),
            queues: core.info.queues.clone(),
        };
        let seen = match core.store.heartbeat(&look).await {
            Ok(seen) => seen,
            Err(error) => {
                let Some(error) = core.end_by(error) else { return };
                if !std::mem::replace(&mut self.is_unanswered, true) {
                    tracing::warn!(%error, "heartbeat failed; trying again");
                }
                return;
            }
        };
        if std::mem::take(&mut self.is_unanswered) {
            tracing::info!("heartbeats succeed again");
        }
        self.may_look_at = Instant::now() + asked_at.elapsed() * LOOK_SHARE;
        core.store_time.correct(asked_at, seen.now);
        if seen.is_fenced {
            core.fenced();
            return;
        }
        // before the renewal, which lets bodies begin that have waited for it
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

    fn pass_on(&mut self, seen: HeartbeatReply, look: &Heartbeat, generations: &[u32]) {
        let core = self.core.clone();
        for key in seen.finished {
            core.watch.notify(key);
        }
        if let Some(versions) = seen.newer_schema {
            core.outdate(versions);
        }
        if let Some(held) = &look.held {
            self.adopt_strays(held, seen.unheld, generations);
        }
        if seen.has_dead_workers {
            core.worker.take_over.notify_one();
        }
        if let Some(at) = seen.next_expiry_at {
            // after that time by any estimate, and at a different moment in each worker
            let pause = at.since(seen.now) + Duration::from_millis(20 + fastrand::u64(..80));
            self.judge_at = Some(Instant::now() + pause);
        }
        if let Some(at) = seen.next_deadline {
            core.worker.deadline_at.fetch_min(at.as_micros(), SeqCst);
        }
        if !seen.expired.is_empty() {
            if seen.expired.len() >= MAX_EXPIRED {
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

    /// Launches executions of lost claims. The store has listed `seen`: executions that this worker owns, but that were not
    /// in `held`.
    fn adopt_strays(&mut self, held: &[Key], seen: Vec<Record>, generations: &[u32]) {
        let core = self.core.clone();
        let seen: Vec<Record> =
            seen.into_iter().filter(|record| !core.runs.holds(record.execution.key)).collect();
        let strays = self.strays.confirm(held, seen.iter().map(|record| record.execution.key));
        for record in seen.into_iter().filter(|record| strays.contains(&record.execution.key)) {
            tracing::info!(execution = %record.execution.key, "launched after a claim whose outcome was unknown");
            core.add_running(1);
            launch(&core, record, generations);
        }
        if self.strays.has_suspects() {
            core.worker.is_look_wanted.store(true, SeqCst);
        }
    }
}

/// Expires executions whose deadline has passed and that no worker runs. A later heartbeat reports those that fail again.
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
