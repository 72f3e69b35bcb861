//! [`Heartbeats`]: the worker's loop that asks the store for changes that concern the worker, and applies them.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::time::Instant;

use crate::key::Key;
use crate::runtime::inner::EngineInner;
use crate::store::{
    ClaimHint, EndedExecutions, Heartbeat, HeartbeatReply, Hint, MAX_EXPIRED, Record, RequestKind,
};
use crate::worker::launch::{lane_generations, launch};
use crate::worker::lost_claims::LostClaims;
use crate::worker::renewals::{IDLE_CLIENT_INTERVAL, RENEWAL_INTERVAL};

/// The interval between two regular heartbeats if no hints are received.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two regular heartbeats if hints announce all changes.
const HINTED_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The interval between two routine searches for lost claims.
const AUDIT_INTERVAL: Duration = Duration::from_mins(1);
/// The shortest pause between a heartbeat and the next one that a hint causes, as a multiple of the heartbeat's
/// duration. So heartbeats caused by hints take only a small part of the worker's time.
const HINTED_HEARTBEAT_PAUSE_FACTOR: u32 = 4;
/// Maximum number of watched executions whose waiters are notified on every hint. With more of them, waiters are
/// notified after the next heartbeat.
const MAX_NOTIFIED_WAITERS: usize = 64;
/// The shortest interval between two notifications of waiters.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(2);
/// The delay of the heartbeat that follows a notification of waiters. This heartbeat finds the other changes that the
/// hint announced.
const HEARTBEAT_AFTER_NOTIFY_DELAY: Duration = Duration::from_millis(5);
/// The time from a deadline to the heartbeat that is sent because of it. Without this margin, the deadline might not
/// have passed yet by the store's clock.
const DEADLINE_MARGIN: Duration = Duration::from_millis(1);

/// The state of the heartbeat loop under one registration.
pub(super) struct Heartbeats {
    engine: Arc<EngineInner>,
    lost_claims: LostClaims,
    /// Whether a search for lost claims waits for the end of a claim.
    is_search_deferred: bool,
    /// Whether the last heartbeat failed.
    is_failing: bool,
    /// The time of the last regular heartbeat.
    sent_at: Option<Instant>,
    /// The time of the last routine search for lost claims.
    audited_at: Instant,
    /// The time of the heartbeat that a hint has caused.
    hinted_heartbeat_at: Option<Instant>,
    /// The earliest time of a heartbeat that a hint causes.
    earliest_hinted_heartbeat_at: Instant,
    /// The earliest time at which a hint may notify waiters.
    earliest_notify_at: Instant,
    /// Whether a hint has come since the last heartbeat.
    has_hint: bool,
}

impl Heartbeats {
    pub(super) fn new(engine: Arc<EngineInner>) -> Self {
        Self {
            engine,
            lost_claims: LostClaims::default(),
            is_search_deferred: false,
            is_failing: false,
            sent_at: None,
            audited_at: Instant::now(),
            hinted_heartbeat_at: None,
            earliest_hinted_heartbeat_at: Instant::now(),
            earliest_notify_at: Instant::now(),
            has_hint: false,
        }
    }

    pub(super) async fn run(&mut self) {
        let engine = self.engine.clone();
        let wakeups = &engine.wakeups;
        loop {
            self.lost_claims.search_if_reported(&wakeups.lost_claims);
            let every = if is_idle_client(&engine) {
                IDLE_CLIENT_INTERVAL
            } else if wakeups.receives_hints.load(SeqCst) {
                HINTED_HEARTBEAT_INTERVAL
            } else {
                HEARTBEAT_INTERVAL
            };
            let has_passed = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
            let is_regular = self.sent_at.is_none_or(|at| at.elapsed() >= every);
            // a heartbeat reports the executions whose deadlines have passed
            let is_due = has_passed(self.hinted_heartbeat_at) | wakeups.take_due_deadline(engine.now());
            if is_regular || is_due || wakeups.is_heartbeat_requested.swap(false, SeqCst) {
                // a heartbeat never waits for a claim, because it reports requests
                self.send_heartbeat(is_regular, wakeups.claim_lock.try_lock().ok()).await;
            }
            if wakeups.is_heartbeat_requested.load(SeqCst) {
                continue;
            }
            let next = self.sent_at.map_or_else(Instant::now, |at| at + every);
            let next = self.hinted_heartbeat_at.map_or(next, |at| at.min(next));
            let deadline_in =
                wakeups.next_deadline_at.load(SeqCst).saturating_sub(engine.now().as_micros()).max(0) as u64;
            let next =
                next.min(Instant::now() + Duration::from_micros(deadline_in).min(every) + DEADLINE_MARGIN);
            tokio::select! {
                () = wakeups.heartbeat.notified() => {}
                () = tokio::time::sleep_until(next) => {}
                guard = wakeups.claim_lock.lock(), if self.is_search_deferred => {
                    self.send_heartbeat(false, Some(guard)).await;
                }
                hint = engine.store.next_hint(engine.registration().worker) => self.handle_hint(&hint, next).await,
            }
        }
    }

    /// Reacts to a hint that other processes may have changed something.
    async fn handle_hint(&mut self, hint: &Hint, next: Instant) {
        let engine = &self.engine;
        match hint.claim {
            ClaimHint::AtOnce => engine.wakeups.wake_claimer(true),
            ClaimHint::IfLimited => engine.wakeups.note_queue_slots_freed(),
            ClaimHint::None => {}
        }
        if hint.has_free_slots {
            engine.known_queues.notify_capacity();
        }
        if let EndedExecutions::Tagged(tags) = &hint.ended {
            engine.completion_watch.notify_tagged(tags);
            engine.change_watch.notify_tagged(tags);
            engine.stream_watch.notify_tagged(tags);
            if !hint.has_other {
                return;
            }
        }
        if is_idle_client(engine) {
            // the hint may announce a migration, which waits for the end of this client
            engine.wakeups.request_renewal(Instant::now() + RENEWAL_INTERVAL);
        }
        self.has_hint = true;
        if engine.completion_watch.count() > MAX_NOTIFIED_WAITERS {
            // with thousands of waiters a heartbeat takes long: leave most of the time to other work
            self.plan_hinted_heartbeat(self.earliest_hinted_heartbeat_at.min(next));
            return;
        }
        // a few waiters load their executions themselves, in one query; the heartbeat for everything else must not
        // delay them
        tokio::time::sleep_until(self.earliest_notify_at).await;
        engine.completion_watch.notify_all();
        engine.change_watch.notify_all();
        engine.stream_watch.notify_all();
        let now = Instant::now();
        self.earliest_notify_at = now + NOTIFY_INTERVAL;
        self.plan_hinted_heartbeat(self.earliest_hinted_heartbeat_at.max(now + HEARTBEAT_AFTER_NOTIFY_DELAY));
    }

    /// Plans a heartbeat because of a hint, at a time or earlier.
    fn plan_hinted_heartbeat(&mut self, at: Instant) {
        self.hinted_heartbeat_at = Some(self.hinted_heartbeat_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Sends a heartbeat and applies the reply. A regular one is sent because of the time that has passed. Searches for
    /// lost claims if a search is due and `no_claim` is given. `no_claim` is the lock that every claim holds, so no claim
    /// is under way.
    async fn send_heartbeat(&mut self, is_regular: bool, no_claim: Option<MutexGuard<'_, ()>>) {
        let engine = self.engine.clone();
        let sent_at = Instant::now();
        self.hinted_heartbeat_at = None;
        if is_regular {
            self.sent_at = Some(sent_at);
        }
        if engine.is_poisoned() {
            return;
        }
        if is_regular && self.audited_at.elapsed() >= AUDIT_INTERVAL {
            self.audited_at = sent_at;
            self.lost_claims.begin_search([]);
        }
        if is_regular || std::mem::take(&mut self.has_hint) {
            engine.completion_watch.begin_round();
        }
        let is_lease_pending = engine.lease.is_pending();
        let registration = engine.registration();
        let no_claim = no_claim.filter(|_| self.lost_claims.is_searching());
        self.is_search_deferred = self.lost_claims.is_searching() && no_claim.is_none();
        let held = no_claim.as_ref().map(|_| engine.runs.keys());
        let generations = lane_generations(&engine);
        let number = engine.wakeups.heartbeats_sent.fetch_add(1, SeqCst);
        // their requests are durable by now, so the reply contains each pause that was not withdrawn
        let pausing = engine.runs.pausing();
        let heartbeat = Heartbeat {
            worker: registration.worker,
            epoch: registration.epoch,
            watched: engine.completion_watch.take_portion(),
            held,
            workflows: engine.info.workflows.clone(),
            app_version: engine.info.app_version.clone(),
            queues: engine.info.queues.clone(),
        };
        let reply = match engine.store.heartbeat(&heartbeat).await {
            Ok(reply) => reply,
            Err(error) => {
                let Some(error) = engine.stop_if_fatal(error) else { return };
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::debug!(%error, "heartbeat failed; trying again");
                }
                // the events that caused it do not come again
                self.has_hint = true;
                self.hinted_heartbeat_at = Some(Instant::now() + HEARTBEAT_INTERVAL);
                return;
            }
        };
        if std::mem::take(&mut self.is_failing) {
            tracing::debug!("heartbeats succeed again");
        }
        self.earliest_hinted_heartbeat_at =
            Instant::now() + sent_at.elapsed() * HINTED_HEARTBEAT_PAUSE_FACTOR;
        if engine.completion_watch.is_round_open() {
            self.hinted_heartbeat_at = Some(self.earliest_hinted_heartbeat_at);
        }
        engine.store_clock.correct(sent_at, reply.now);
        if reply.is_fenced {
            engine.wakeups.mark_fenced();
            return;
        }
        for (key, kind) in &reply.requests {
            match engine.runs.get(*key) {
                Some(run) if run.precedes_heartbeat(number) => run.handle_request(*kind),
                Some(_) => engine.wakeups.is_heartbeat_requested.store(true, SeqCst),
                None => {}
            }
        }
        for run in pausing {
            if !reply.requests.contains(&(run.key, RequestKind::Pause)) {
                run.withdraw_pause();
            }
        }
        if is_lease_pending {
            // bodies that wait for the lease begin after the requests that came in the meantime
            engine.lease.grant_pending();
        }
        if is_regular {
            // a message may have come without a hint
            engine.change_watch.notify_all();
            engine.stream_watch.notify_all();
        }
        self.apply_reply(reply, &heartbeat, &generations);
    }

    fn apply_reply(&mut self, reply: HeartbeatReply, heartbeat: &Heartbeat, generations: &[u32]) {
        let engine = self.engine.clone();
        for key in reply.finished {
            engine.completion_watch.notify(key);
        }
        if let Some(held) = &heartbeat.held {
            self.launch_lost_claims(held, reply.unheld, generations);
        }
        if let Some(at) = reply.next_deadline {
            engine.wakeups.next_deadline_at.fetch_min(at.as_micros(), SeqCst);
        }
        if !reply.expired.is_empty() {
            if reply.expired.len() >= MAX_EXPIRED {
                // more executions may have expired
                engine.wakeups.is_heartbeat_requested.store(true, SeqCst);
            }
            engine.runtime.spawn(expire_executions(engine.clone(), reply.expired));
        }
        for (signal, time) in [
            (&engine.wakeups.next_due_at, reply.next_due),
            (&engine.wakeups.next_trial_at, reply.quarantined_until),
        ] {
            if let Some(time) = time {
                signal.fetch_min(time.as_micros(), SeqCst);
                engine.wakeups.wake_claimer(false);
            }
        }
        if reply.has_ready {
            engine.wakeups.wake_claimer(true);
        }
    }

    /// Launches executions of lost claims. The store has listed `unheld`: executions that this worker owns, but that
    /// were not in `held`.
    fn launch_lost_claims(&mut self, held: &[Key], unheld: Vec<Record>, generations: &[u32]) {
        let engine = self.engine.clone();
        let unheld: Vec<Record> =
            unheld.into_iter().filter(|record| !engine.runs.contains(record.execution.key)).collect();
        let lost = self.lost_claims.confirm(held, unheld.iter().map(|record| record.execution.key));
        for mut record in unheld.into_iter().filter(|record| lost.contains(&record.execution.key)) {
            if let Some(bundle) = &mut record.bundle {
                // the reply of the claim would have reported this
                bundle.has_queue_limits = record.execution.placement.is_some();
            }
            tracing::info!(execution = %record.execution.key, "launched after a claim whose outcome was unknown");
            engine.take_slots_unchecked(1);
            launch(&engine, record, generations);
        }
        if self.lost_claims.has_suspects() {
            engine.wakeups.is_heartbeat_requested.store(true, SeqCst);
        }
    }
}

/// Whether an engine is a client that waits for no execution of other processes.
pub(super) fn is_idle_client(engine: &EngineInner) -> bool {
    engine.info.is_client && !engine.completion_watch.has_watchers()
}

/// Expires executions whose deadline has passed and that no worker runs. If a request fails, a later heartbeat reports
/// its execution again.
async fn expire_executions(engine: Arc<EngineInner>, expired: Vec<Key>) {
    let ends = expired.into_iter().map(|key| {
        let engine = &engine;
        async move {
            if let Err(error) = engine.request_by_key(key, RequestKind::Expire).await {
                tracing::debug!(execution = %key, %error, "cannot end an execution whose deadline has passed");
            }
        }
    });
    futures_util::future::join_all(ends).await;
}
