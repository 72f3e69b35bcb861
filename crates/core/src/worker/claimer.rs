//! [`Claimer`]: the worker's loop that claims executions to run.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::time::Instant;

use super::heartbeats::HEARTBEAT_INTERVAL;
use super::takeover::RETRY_DELAY;
use crate::clock::Timestamp;
use crate::runtime::capacity::Reservation;
use crate::runtime::inner::Core;
use crate::runtime::run::Run;
use crate::store::{Claim, ClaimReply, StoreError};
use crate::worker::launch::{launch, lane_generations};
use crate::worker::quarantine::QuarantineTrials;

/// The delay of the claim that follows a claim which its byte limit may have cut short.
const NEXT_CLAIM_AFTER: Duration = Duration::from_millis(5);
/// Maximum number of executions in a claim.
const CLAIM: usize = 1_000;
/// Maximum number of bytes of inputs and checkpoints in a claim.
const CLAIM_BYTES: usize = 16 * 1024 * 1024;

/// The executions that one claim has launched.
struct ClaimBatch {
    runs: Vec<Arc<Run>>,
    /// Whether the claim was cut short: it reached its limit, or more could be claimed now.
    is_full: bool,
}

/// The claims under one registration.
pub(super) struct Claimer {
    core: Arc<Core>,
    /// The registration's lane for claims.
    pub(super) lane: u16,
    count: i64,
    quarantine: QuarantineTrials,
    /// When to claim what the last claim may have left because of its byte limit.
    claim_again_at: Option<Instant>,
    /// When the rate of a queue allows further executions to begin.
    rated_until: Option<Timestamp>,
}

impl Claimer {
    pub(super) fn new(core: Arc<Core>, lane: u16) -> Self {
        Self { core, lane, count: 0, quarantine: QuarantineTrials::new(), claim_again_at: None, rated_until: None }
    }

    pub(super) async fn run(&mut self) {
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
            let pause = Duration::from_micros(due_in).clamp(Duration::from_micros(200), HEARTBEAT_INTERVAL);
            let next = Instant::now() + pause;
            tokio::select! {
                () = signals.wanted.notified() => {}
                () = tokio::time::sleep_until(self.claim_again_at.map_or(next, |at| at.min(next))) => {}
            }
        }
    }

    /// Claims until the capacity is used up or nothing claimable is left.
    async fn claim(&mut self, for_timers: bool) {
        loop {
            let Some(taken) = self.take(CLAIM, false).await else { break };
            if !taken.is_full {
                // large executions may be left over; claiming them must not delay those that were just launched
                self.claim_again_at = (!taken.runs.is_empty()).then(|| Instant::now() + NEXT_CLAIM_AFTER);
                break;
            }
        }
        if for_timers {
            // the next heartbeat reports when the next timer is due
            self.core.want_look();
        }
    }

    /// Claims the next batch of executions in quarantine to try.
    async fn claim_from_quarantine(&mut self) {
        let core = self.core.clone();
        // the next heartbeat, or the end of a trial, sets the time again
        core.worker.quarantined_until.store(i64::MAX, SeqCst);
        let room = self.quarantine.capacity(&core);
        if room == 0 {
            return;
        }
        if let Some(ClaimBatch { runs, .. }) = self.take(room, true).await {
            core.worker.is_trying.store(!runs.is_empty(), SeqCst);
            self.quarantine.begin(&runs, core.now());
            if !runs.is_empty() {
                // the next heartbeat reports when further ones may be tried
                core.want_look();
            }
        }
    }

    /// Returns the workflows to claim and the maximum number of executions. Workflows that hold a thread are included only
    /// while a thread is free for them. `None` if nothing may be claimed.
    fn claimable(&self, most: usize) -> Option<(Arc<[Arc<str>]>, usize)> {
        let core = &self.core;
        let all = &core.info.workflows;
        let is_in_thread = |name: &Arc<str>| core.definitions.get(name).is_some_and(|it| it.holds_thread());
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
    async fn take(&mut self, most: usize, from_quarantine: bool) -> Option<ClaimBatch> {
        let core = self.core.clone();
        if core.info.workflows.is_empty() || core.is_poisoned() {
            return None;
        }
        let Some((workflows, most)) = self.claimable(most) else {
            core.worker.is_backed_up.store(true, SeqCst);
            return None;
        };
        // reserved before the claim, so that starts in this process cannot take the same slots in the meantime
        let Some(places) = Reservation::take(&core, most) else {
            core.note_queued();
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
        let generations = lane_generations(&core);
        let freed = core.worker.freed_slots.load(SeqCst);
        let claimed = match core.store.claim(&claim).await {
            // a lane has found during the claim that the registration is fenced
            Ok(_) if core.worker.is_fenced.load(SeqCst) => Err(StoreError::Fenced),
            claimed => claimed,
        };
        places.commit_used(claimed.as_ref().map_or(0, |claimed| claimed.records.len()));
        match claimed {
            Ok(ClaimReply { records, has_more, is_limited, retry_at: again_at }) => {
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
                    runs.extend(launch(&core, record, &generations));
                    crate::crash_point!("adopted");
                }
                Some(ClaimBatch { runs, is_full })
            }
            Err(StoreError::Fenced) => {
                core.fenced();
                None
            }
            Err(error) => {
                let error = core.end_by(error)?;
                // the claim may have happened: its number is used up, and a later heartbeat finds what it took
                tracing::debug!(%error, "claim failed");
                self.count += i64::from(matches!(error, StoreError::Unavailable(_)));
                core.worker.lost_claims.lock().get_or_insert_default().extend(core.runs.ending());
                drop(claiming);
                tokio::time::sleep(RETRY_DELAY).await;
                core.want_look();
                None
            }
        }
    }
}
