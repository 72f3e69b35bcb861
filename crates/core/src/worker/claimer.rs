//! The claims of a worker: they take executions to run.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::time::Instant;

use super::heartbeats::LOOK_EVERY;
use super::takeover::AGAIN_AFTER;
use crate::clock::Timestamp;
use crate::runtime::capacity::Places;
use crate::runtime::inner::Core;
use crate::runtime::run::Run;
use crate::store::{Claim, ClaimReply, StoreError};
use crate::worker::launch::{adopt, generations};
use crate::worker::quarantine::Quarantine;

/// When it is seen whether a claim has left something because of its bytes.
const NEXT_CLAIM_AFTER: Duration = Duration::from_millis(5);
/// Most executions in a claim.
const CLAIM: usize = 1_000;
/// Most bytes of inputs and checkpoints in a claim.
const CLAIM_BYTES: usize = 16 * 1024 * 1024;

/// What a claim has brought.
struct Taken {
    runs: Vec<Arc<Run>>,
    /// There was no place for more, or it was not their turn.
    is_full: bool,
}

/// The claims under one registration.
pub(super) struct Claims {
    core: Arc<Core>,
    /// The registration's lane for claims.
    pub(super) lane: u16,
    count: i64,
    quarantine: Quarantine,
    /// When something may be left of what the last claim could not bring.
    claim_again_at: Option<Instant>,
    /// When the rate of a queue allows for more.
    rated_until: Option<Timestamp>,
}

impl Claims {
    pub(super) fn new(core: Arc<Core>, lane: u16) -> Self {
        Self { core, lane, count: 0, quarantine: Quarantine::new(), claim_again_at: None, rated_until: None }
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
