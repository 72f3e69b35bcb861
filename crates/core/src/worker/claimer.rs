//! [`Claimer`]: the worker's loop that claims executions to run.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::time::Instant;

use super::heartbeats::HEARTBEAT_INTERVAL;
use super::maintenance::RETRY_DELAY;
use crate::clock::Timestamp;
use crate::runtime::capacity::Reservation;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::Run;
use crate::store::{Claim, ClaimReply, StoreError};
use crate::worker::launch::{lane_generations, launch};
use crate::worker::quarantine::QuarantineTrials;

/// The delay of the next claim after a claim that its byte limit may have cut short.
const FOLLOW_UP_DELAY: Duration = Duration::from_millis(5);
/// Maximum number of executions in a claim.
const MAX_CLAIM_EXECUTIONS: usize = 1_000;
/// Maximum number of bytes of inputs and checkpoints in a claim.
const MAX_CLAIM_BYTES: usize = 16 * 1024 * 1024;

/// The runs of the executions that one claim took.
struct ClaimedRuns {
    runs: Vec<Arc<Run>>,
    /// Whether the claim was cut short: it reached its limit, or left executions that can be claimed now.
    is_cut_short: bool,
}

/// The state of the claiming loop under one registration.
pub(super) struct Claimer {
    engine: Arc<EngineInner>,
    /// The registration's lane for claims.
    pub(super) lane: u16,
    claim_count: i64,
    trials: QuarantineTrials,
    /// The time at which to claim what the last claim may have left because of its byte limit.
    follow_up_at: Option<Instant>,
    /// The time from which the rate of a queue allows further executions to begin.
    rate_limited_until: Option<Timestamp>,
}

impl Claimer {
    pub(super) fn new(engine: Arc<EngineInner>, lane: u16) -> Self {
        Self {
            engine,
            lane,
            claim_count: 0,
            trials: QuarantineTrials::new(),
            follow_up_at: None,
            rate_limited_until: None,
        }
    }

    pub(super) async fn run(&mut self) {
        let engine = self.engine.clone();
        let wakeups = &engine.wakeups;
        loop {
            let is_timer_due = wakeups.take_due_timer(engine.now());
            let is_follow_up_due = self.follow_up_at.take_if(|at| *at <= Instant::now()).is_some();
            let is_rate_due = self.rate_limited_until.take_if(|at| *at <= engine.now()).is_some();
            if wakeups.has_ready.swap(false, SeqCst) || is_timer_due || is_follow_up_due || is_rate_due {
                self.claim_all(is_timer_due).await;
            }
            if wakeups.next_trial_at.load(SeqCst) <= engine.now().as_micros() {
                self.claim_from_quarantine().await;
            }
            if wakeups.has_ready.load(SeqCst) {
                continue;
            }
            let due_at = wakeups.next_due_at.load(SeqCst).min(wakeups.next_trial_at.load(SeqCst));
            let due_at = self.rate_limited_until.map_or(due_at, |at| at.as_micros().min(due_at));
            let due_in = due_at.saturating_sub(engine.now().as_micros()).max(0) as u64;
            let pause = Duration::from_micros(due_in).clamp(Duration::from_micros(200), HEARTBEAT_INTERVAL);
            let next = Instant::now() + pause;
            tokio::select! {
                () = wakeups.claim.notified() => {}
                () = tokio::time::sleep_until(self.follow_up_at.map_or(next, |at| at.min(next))) => {}
            }
        }
    }

    /// Claims until the capacity is used up or nothing claimable is left.
    async fn claim_all(&mut self, for_timers: bool) {
        loop {
            let Some(claimed) = self.claim_once(MAX_CLAIM_EXECUTIONS, false).await else { break };
            if !claimed.is_cut_short {
                // large executions may be left over; claiming them must not delay those that were just launched
                self.follow_up_at = (!claimed.runs.is_empty()).then(|| Instant::now() + FOLLOW_UP_DELAY);
                break;
            }
        }
        if for_timers {
            // the next heartbeat reports when the next timer is due
            self.engine.wakeups.request_heartbeat();
        }
    }

    /// Claims the next group of executions in quarantine, and begins their trials.
    async fn claim_from_quarantine(&mut self) {
        let engine = self.engine.clone();
        // the next heartbeat, or the end of a trial, sets the time again
        engine.wakeups.next_trial_at.store(i64::MAX, SeqCst);
        let capacity = self.trials.capacity(&engine);
        if capacity == 0 {
            return;
        }
        if let Some(ClaimedRuns { runs, .. }) = self.claim_once(capacity, true).await {
            engine.wakeups.has_trial.store(!runs.is_empty(), SeqCst);
            self.trials.begin(&runs, engine.now());
            if !runs.is_empty() {
                // the next heartbeat reports when further executions may be tried
                engine.wakeups.request_heartbeat();
            }
        }
    }

    /// Returns the workflows to claim and the maximum number of executions. Workflows that hold a thread are included
    /// only while a thread is free for them. Returns `None` if nothing may be claimed.
    fn claimable_workflows(&self, limit: usize) -> Option<(Arc<[Arc<str>]>, usize)> {
        let engine = &self.engine;
        let all = &engine.info.workflows;
        let holds_thread = |name: &Arc<str>| engine.definitions.get(name).is_some_and(|it| it.holds_thread());
        if engine.options.max_threads.is_none() || !all.iter().any(holds_thread) {
            return Some((all.clone(), limit));
        }
        let capacity = engine.read_ahead.capacity();
        if capacity < limit {
            engine.read_ahead.wake_on_conclusion();
        }
        if capacity > 0 {
            return Some((all.clone(), limit.min(capacity)));
        }
        let others: Arc<[Arc<str>]> = all.iter().filter(|name| !holds_thread(name)).cloned().collect();
        (!others.is_empty()).then_some((others, limit))
    }

    /// Claims once, and launches the claimed executions. Returns `None` if nothing can be claimed at the moment, or if
    /// the claim failed.
    async fn claim_once(&mut self, limit: usize, from_quarantine: bool) -> Option<ClaimedRuns> {
        let engine = self.engine.clone();
        if engine.info.workflows.is_empty() || engine.is_poisoned() {
            return None;
        }
        let Some((workflows, limit)) = self.claimable_workflows(limit) else {
            engine.wakeups.is_backlogged.store(true, SeqCst);
            return None;
        };
        // reserved before the claim, so that starts in this process cannot take the same slots in the meantime
        let Some(reservation) = Reservation::take(&engine, limit) else {
            engine.note_queued();
            return None;
        };
        let claim_guard = engine.wakeups.claim_lock.lock().await;
        let registration = engine.registration();
        let (max_bundles, busy_keys) =
            if from_quarantine { (usize::MAX, Vec::new()) } else { engine.claimable_bundles() };
        let claim = Claim {
            worker: registration.worker,
            lane: self.lane,
            epoch: registration.epoch,
            number: self.claim_count + 1,
            limit: reservation.count(),
            max_bytes: MAX_CLAIM_BYTES,
            max_bundles,
            busy_keys,
            workflows,
            app_version: engine.info.app_version.clone(),
            queues: engine.info.queues.clone(),
            from_quarantine,
        };
        let generations = lane_generations(&engine);
        let freed = engine.wakeups.freed_queue_slots.load(SeqCst);
        let reply = match engine.store.claim(&claim).await {
            // a lane has found during the claim that the registration is fenced
            Ok(_) if engine.wakeups.is_fenced.load(SeqCst) => Err(StoreError::Fenced),
            reply => reply,
        };
        reservation.commit_used(reply.as_ref().map_or(0, |reply| reply.records.len()));
        match reply {
            Ok(ClaimReply { records, has_more, is_limited, retry_at }) => {
                if !from_quarantine {
                    self.rate_limited_until = retry_at;
                }
                if is_limited {
                    engine.wakeups.claim_on_freed_slot(freed);
                }
                if !records.is_empty() {
                    crate::crash_point!("claimed");
                    engine.known_queues.notify_capacity();
                }
                self.claim_count += 1;
                let is_cut_short = has_more || records.len() >= claim.limit;
                if !from_quarantine {
                    engine.wakeups.is_backlogged.store(is_cut_short, SeqCst);
                }
                let mut runs = Vec::with_capacity(records.len());
                for record in records {
                    runs.extend(launch(&engine, record, &generations));
                    crate::crash_point!("claimed run launched");
                }
                Some(ClaimedRuns { runs, is_cut_short })
            }
            Err(StoreError::Fenced) => {
                engine.wakeups.mark_fenced();
                None
            }
            Err(error) => {
                let error = engine.stop_if_fatal(error)?;
                // the claim may have been committed: its number is not used again, and a later heartbeat finds the
                // executions that it took
                tracing::debug!(%error, "claim failed");
                self.claim_count += i64::from(matches!(error, StoreError::Unavailable(_)));
                engine
                    .wakeups
                    .lost_claims
                    .lock()
                    .get_or_insert_default()
                    .extend(engine.runs.transient_keys());
                drop(claim_guard);
                tokio::time::sleep(RETRY_DELAY).await;
                engine.wakeups.request_heartbeat();
                None
            }
        }
    }
}
