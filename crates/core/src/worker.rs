//! The worker: a thread that looks after an engine's registration, and claims executions to run.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::commit::{Lane, on_thread};
use crate::engine::{Core, all_ended};
use crate::error::Error;
use crate::key::Key;
use crate::payload::Payload;
use crate::record::Record;
use crate::replay::Replay;
use crate::run::{Interrupt, NewRun, Run};
use crate::store::{Claim, Look, Seen, StoreError};
use crate::strays::Strays;
use crate::task::{RunTask, cancel_failure, deadline_failure, panicked};
use crate::write::{Discard, RequestKind, Write};

/// How often the worker looks, whatever happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a claim that failed.
const CLAIM_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Most executions in a claim.
const CLAIM: usize = 1_000;
/// Most bytes of inputs and checkpoints in a claim.
const CLAIM_BYTES: usize = 16 * 1024 * 1024;

/// What ends the worker.
pub(crate) struct Shutdown {
    pub(crate) grace: Duration,
    pub(crate) done: oneshot::Sender<()>,
}

struct Worker {
    core: Arc<Core>,
    /// The registration's lane for claims.
    claim_lane: u16,
    claims: i64,
    strays: Strays,
    looked_at: Option<Instant>,
    lanes_ended: Vec<oneshot::Receiver<()>>,
}

/// Starts the worker's thread. Its first look, which recovers what lost workers left, comes at once.
pub(crate) fn spawn(
    core: Arc<Core>,
    claim_lane: u16,
    lanes_ended: Vec<oneshot::Receiver<()>>,
    shutdown: oneshot::Receiver<Shutdown>,
) -> Result<(), Error> {
    let mut worker =
        Worker { core, claim_lane, claims: 0, strays: Strays::default(), looked_at: None, lanes_ended };
    on_thread("stepfast-worker".into(), async move {
        let core = worker.core.clone();
        if let Err(panic) = AssertUnwindSafe(worker.run(shutdown)).catch_unwind().await {
            core.poison(&format!("the worker failed: {}", panicked(&*panic).message));
        }
        core.worker.stopped.send_replace(true);
        core.watch.notify_all();
    })
}

impl Worker {
    /// Works until it is told to end, whatever the store is doing then.
    async fn run(&mut self, shutdown: oneshot::Receiver<Shutdown>) {
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
        let signals = &core.worker;
        loop {
            if signals.is_fenced.load(SeqCst) {
                self.register_anew().await;
            }
            let is_due = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
            if is_due || signals.is_wanted.swap(false, SeqCst) {
                self.look().await;
            }
            let now = core.now().as_micros();
            let is_timer_due = signals.due_at.load(SeqCst) <= now;
            if is_timer_due {
                signals.due_at.store(i64::MAX, SeqCst);
            }
            if signals.is_ready.swap(false, SeqCst) || is_timer_due {
                self.claim(is_timer_due).await;
            }
            let look_in = self.looked_at.map_or(Duration::ZERO, |at| LOOK_EVERY.saturating_sub(at.elapsed()));
            let due_in = signals.due_at.load(SeqCst).saturating_sub(core.now().as_micros()).max(0) as u64;
            let pause = look_in.min(Duration::from_micros(due_in).max(Duration::from_micros(200)));
            if [&signals.is_ready, &signals.is_fenced, &signals.is_wanted].iter().any(|it| it.load(SeqCst)) {
                continue;
            }
            tokio::select! {
                () = signals.notify.notified() => {}
                () = tokio::time::sleep(pause) => {}
                () = core.store.changed() => signals.is_wanted.store(true, SeqCst),
            }
        }
    }

    /// The look: renews, recovers, and passes on what is asked for.
    async fn look(&mut self) {
        let core = self.core.clone();
        if core.is_poisoned() {
            self.looked_at = Some(Instant::now());
            return;
        }
        let registration = core.registration();
        let holds = self.strays.are_sought().then(|| core.runs.held());
        let generations = generations(&core);
        let look = Look {
            worker: registration.worker,
            epoch: registration.epoch,
            watch: core.watch.keys(),
            holds,
            workflows: core.names.clone(),
        };
        let asked_at = Instant::now();
        self.looked_at = Some(asked_at);
        let Seen { now, is_fenced, requests, ended, strays, has_ready, next_due, recovered } =
            match core.store.look(&look).await {
                Ok(seen) => seen,
                Err(StoreError::Corrupt(reason)) => {
                    core.poison(&reason);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "the worker's look failed");
                    return;
                }
            };
        core.store_time.correct(asked_at, now);
        if is_fenced {
            core.worker.is_fenced.store(true, SeqCst);
            return;
        }
        core.lease.renew(asked_at);
        if recovered > 0 {
            crate::crash_point!("look recovered");
            tracing::info!(recovered, "executions of lost workers can be claimed again");
        }
        for (key, kind) in requests {
            if let (RequestKind::Cancel, Some(run)) = (kind, core.runs.get(key)) {
                run.interrupt(Interrupt::Cancel(cancel_failure().into()));
            }
        }
        for key in ended {
            core.watch.notify(key);
        }
        if let Some(held) = &look.holds {
            self.adopt_strays(held, strays, &generations);
        }
        if let Some(due_at) = next_due {
            core.worker.due_at.fetch_min(due_at.as_micros(), SeqCst);
        }
        if has_ready || recovered > 0 {
            core.worker.is_ready.store(true, SeqCst);
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
            core.worker.is_wanted.store(true, SeqCst);
        }
    }

    /// Claims as many executions as there are places for, or as there are.
    async fn claim(&mut self, for_timers: bool) {
        let core = self.core.clone();
        if core.names.is_empty() || core.is_poisoned() {
            return;
        }
        loop {
            // taken before the claim: what is started here meanwhile must not take the same places
            let limit = core.take_slots(CLAIM);
            if limit == 0 {
                return;
            }
            let registration = core.registration();
            let claim = Claim {
                worker: registration.worker,
                lane: self.claim_lane,
                epoch: registration.epoch,
                number: self.claims + 1,
                limit,
                max_bytes: CLAIM_BYTES,
                workflows: core.names.clone(),
            };
            let generations = generations(&core);
            let claimed = match core.store.claim(&claim).await {
                // a lane has heard meanwhile that the registration is over
                Ok(_) if core.worker.is_fenced.load(SeqCst) => Err(StoreError::Fenced),
                claimed => claimed,
            };
            core.keep_slots(limit, claimed.as_ref().map_or(0, Vec::len));
            match claimed {
                Ok(records) => {
                    if !records.is_empty() {
                        crate::crash_point!("claimed");
                    }
                    self.claims += 1;
                    let is_drained = records.is_empty();
                    for record in records {
                        adopt(&core, record, &generations);
                        crate::crash_point!("adopted");
                    }
                    if is_drained {
                        break;
                    }
                }
                Err(StoreError::Fenced) => {
                    core.worker.is_fenced.store(true, SeqCst);
                    return;
                }
                Err(StoreError::Corrupt(reason)) => {
                    core.poison(&reason);
                    return;
                }
                Err(error) => {
                    // the claim may have happened: its number is used up, the next look adopts what it took
                    tracing::debug!(%error, "a claim failed");
                    self.claims += i64::from(matches!(error, StoreError::Unavailable(_)));
                    self.strays.seek(core.runs.ending());
                    tokio::time::sleep(CLAIM_AGAIN_AFTER).await;
                    core.worker.is_wanted.store(true, SeqCst);
                    return;
                }
            }
        }
        if for_timers {
            // timers beyond those that were due: when is the next one?
            core.worker.is_wanted.store(true, SeqCst);
        }
    }

    /// Another worker has taken over, or the registration is gone: what runs here is lost to it. Callers'
    /// Writes go on under a new registration.
    async fn register_anew(&mut self) {
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
        self.strays.forget();
        let (asked_at, registration) = loop {
            // a lane may have heard of an older fence only now: then this registration is alive, and would
            // keep what it owns
            if let Err(error) = core.store.close(over).await {
                tracing::debug!(%error, "cannot give up the registration");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
            let asked_at = Instant::now();
            match core.store.register(self.claim_lane + 1).await {
                Ok(registration) => break (asked_at, registration),
                Err(error) => {
                    tracing::debug!(%error, "cannot register");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        };
        *core.registration.write().unwrap_or_else(std::sync::PoisonError::into_inner) = registration;
        core.store_time.correct(asked_at, registration.now);
        core.lease.renew(asked_at);
        core.worker.is_fenced.store(false, SeqCst);
        self.claims = 0;
        for lane in lanes {
            lane.rebind(registration);
        }
        self.looked_at = None;
    }

    /// Registers anew, before `deadline`, if the registration is over.
    async fn renew_registration(&mut self, deadline: Instant) {
        let core = self.core.clone();
        while core.worker.is_fenced.load(SeqCst) {
            let registering = tokio::time::timeout_at(deadline, self.register_anew());
            if registering.await.is_err() {
                return;
            }
        }
    }

    async fn shut_down(&mut self, Shutdown { grace, done }: Shutdown) {
        let core = self.core.clone();
        let deadline = Instant::now() + grace;
        core.begin_closing();
        loop {
            for run in core.runs.all() {
                run.interrupt(Interrupt::HandBack);
                crate::crash_point!("shutdown hands back");
            }
            self.renew_registration(deadline).await;
            if core.running() == 0 {
                break;
            }
            let notified = core.worker.notify.notified();
            if tokio::time::timeout_at(deadline.min(Instant::now() + Duration::from_millis(50)), notified)
                .await
                .is_err()
                && Instant::now() >= deadline
            {
                break;
            }
        }
        for lane in core.lanes() {
            lane.close();
        }
        let ended = all_ended(std::mem::take(&mut self.lanes_ended));
        let mut ended = std::pin::pin!(ended);
        let deadline = deadline.max(Instant::now() + Duration::from_millis(100));
        let has_ended = loop {
            // what callers have staged needs a registration to land under
            self.renew_registration(deadline).await;
            tokio::select! {
                biased;
                () = &mut ended => break true,
                () = core.worker.notify.notified() => {}
                () = tokio::time::sleep_until(deadline) => break false,
            }
        };
        if !has_ended {
            tracing::error!("the database does not answer; what is staged is refused");
            for lane in core.lanes() {
                lane.give_up();
            }
            ended.await;
        }
        crate::crash_point!("shutdown lanes ended");
        let closing = core.store.close(core.registration().worker);
        match tokio::time::timeout_at(deadline.max(Instant::now() + Duration::from_secs(1)), closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not give up the registration; others will notice");
            }
            Err(_) => tracing::warn!("could not give up the registration in time; others will notice"),
        }
        let _ = done.send(());
    }
}

/// The lanes' generations: read before the store is asked for executions, so that what it answers is not
/// taken for owned under a registration to come.
fn generations(core: &Core) -> Vec<u32> {
    core.lanes().iter().map(Lane::generation).collect()
}

/// Runs an execution from its record, which this worker owned under `generations`.
fn adopt(core: &Arc<Core>, mut record: Record, generations: &[u32]) {
    let execution = record.execution.clone();
    let lane = core.lane_of(execution.root);
    let generation = generations.get(usize::from(lane.number())).copied().unwrap_or_default();
    if generation != lane.generation() {
        // taken over meanwhile
        core.slot_freed();
        return;
    }
    let Some(definition) = core.definitions.get(&execution.workflow).cloned() else {
        // cannot be: claims name what they can run
        core.slot_freed();
        return;
    };
    // a run that was lost may have left pieces of values behind that nothing refers to
    let swept = (execution.recoveries > 0).then(|| values_in(&record));
    let (replay, attempts) = Replay::of(&mut record);
    let run = Run::new(
        core.clone(),
        definition,
        NewRun {
            key: execution.key,
            root: execution.root,
            parent: execution.parent.clone(),
            given_id: execution.given_id.clone(),
            run_no: execution.run_no,
            deadline_at: execution.deadline_at,
            start: None,
            start_room: 0,
            replay,
            attempts,
            armed: execution.armed.clone(),
            is_replayed: true,
            generation,
            fate: None,
        },
    );
    run.register();
    if record.requests.contains(&RequestKind::Cancel) {
        run.interrupt(Interrupt::Cancel(cancel_failure().into()));
    } else if run.deadline_at.is_some_and(|deadline_at| deadline_at <= core.now()) {
        run.interrupt(Interrupt::Cancel(deadline_failure().into()));
    }
    let core = core.clone();
    let runtime = core.runtime.clone();
    runtime.spawn(async move {
        if let Some(keep) = swept
            && let Some(lsn) = run.stage(Write::Discard(Discard { execution: run.key, keep }), 0)
        {
            run.lane().durable(lsn).await;
        }
        let input = core.ask(|| crate::value::fetch(&core, run.key, execution.input.clone())).await;
        match input {
            Ok(input) => {
                let mut task = RunTask::executing(run, &input);
                poll_fn(|cx| task.poll_conclusion(cx, &input)).await;
            }
            Err(error) => {
                let failure = crate::Failure::of_kind(
                    crate::failure::UNREADABLE,
                    format!("the input cannot be read: {error}"),
                );
                run.interrupt(match error {
                    Error::Unavailable(_) => Interrupt::HandBack,
                    _ => Interrupt::Park(failure.permanent().into()),
                });
                let input = Payload::empty();
                let mut task = RunTask::executing(run, &input);
                poll_fn(|cx| task.poll_conclusion(cx, &input)).await;
            }
        }
    });
}

/// The values stored aside that a record refers to.
fn values_in(record: &Record) -> SmallVec<[u64; 4]> {
    let Record { execution, checkpoints, attempts, .. } = record;
    [&execution.input, &execution.outcome]
        .into_iter()
        .chain(checkpoints.iter().map(|checkpoint| &checkpoint.outcome))
        .chain(attempts.iter().map(|attempt| &attempt.failure))
        .filter_map(|payload| payload.chunks().map(|chunks| chunks.value))
        .collect()
}

/// Asks the worker to end the engine, and waits until it has.
pub(crate) async fn shut_down(core: &Arc<Core>, grace: Duration) -> Result<(), Error> {
    let (done, ended) = oneshot::channel();
    core.send_shutdown(Shutdown { grace, done });
    if ended.await.is_err() {
        // somebody else has asked before
        core.stopped().await;
    }
    Ok(())
}
