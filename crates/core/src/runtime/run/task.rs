//! [`RunTask`]: the future that runs an execution to its conclusion.
//!
//! The task polls the workflow's code. Whenever all branches are blocked, the task makes the next delivery.
//! Finally, the task stages the execution's end, waits until the end is durable, and only then announces it.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context as TaskContext, Poll, Waker};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::children::{cancel_children, load_awaited_children, take_unended_children};
use crate::clock::Timestamp;
use crate::commit::{DurableFuture, Lsn};
use crate::error::Error;
use crate::failure::{Failure, UNREADABLE};
use crate::key::Key;
use crate::payload::{INLINE_LIMIT, Payload};
use crate::runtime::definition::BodyFuture;
use crate::runtime::run::call::{CLOCK_RECHECK_INTERVAL, IdleState, WaitingFor};
use crate::runtime::run::quiescence::Quiescence;
use crate::runtime::run::{ChildEnd, ChildState, Conclusion, Interrupt, Run, StopReason};
use crate::store::{Outcome, PendingSleep, State, Status, Wait, Write, cancel_outcome};

type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The task of a run. The task resolves when the run has concluded and its waiters are notified.
pub(crate) struct RunTask {
    run: Arc<Run>,
    stage: TaskStage,
    /// Fires when the run may have waited long enough to be suspended.
    suspend_timer: Option<Pin<Box<tokio::time::Sleep>>>,
    /// Fires at the execution's deadline, whatever the code does.
    deadline_timer: Option<Pin<Box<tokio::time::Sleep>>>,
}

enum TaskStage {
    /// Waits for the outcome of the Start before any code runs.
    Starting(DurableFuture<Arc<Run>>),
    Executing(BranchFutures),
    /// Deferred: waits before the execution is requeued.
    Deferred(Pin<Box<tokio::time::Sleep>>),
    /// Cancelled: queries the database for children that earlier runs started.
    LoadingChildren(BoxedFuture<Result<Vec<Key>, Error>>, Failure),
    /// Stores an output that is too large for the row, or waits for budget.
    Storing(BoxedFuture<(State, u32)>),
    /// Waits until the last Write is durable.
    Ending(DurableFuture<Arc<Run>>, FinalState),
    Concluded(Conclusion),
}

/// The run's result, which counts when its last Write is durable.
enum FinalState {
    Ended(Status, Payload),
    /// Suspended. True if the execution waits for events, which may have happened in the meantime.
    Suspended(bool),
    /// Parked or requeued.
    Released,
}

/// The workflow's own branch and its spawned branches.
struct BranchFutures {
    main: BodyFuture,
    /// `None` until a branch is spawned; most workflows spawn none.
    spawned: Option<FuturesUnordered<BoxedFuture<()>>>,
    waker: Waker,
}

/// Maximum number of polls before the task yields to other tasks of its thread.
const MAX_POLLS_PER_TURN: usize = 64;

impl RunTask {
    /// Creates a task that executes the code at once. The run's Start is staged when another Write depends on
    /// it.
    pub(crate) fn begin_executing(run: Arc<Run>, input: &Payload) -> Self {
        let stage = Self::begin_code(&run, input);
        Self { run, stage, suspend_timer: None, deadline_timer: None }
    }

    /// Creates a task that executes the code when the run's Start, staged as `lsn`, was applied.
    pub(crate) fn await_start(run: Arc<Run>, lsn: Lsn) -> Self {
        let stage = TaskStage::Starting(DurableFuture::new(run.clone(), lsn));
        Self { run, stage, suspend_timer: None, deadline_timer: None }
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    fn begin_code(run: &Arc<Run>, input: &Payload) -> TaskStage {
        let (body, own) = (&run.definition.body, run.clone());
        let body = std::panic::catch_unwind(AssertUnwindSafe(|| body(own, input)))
            .unwrap_or_else(|panic| Err(Failure::from_panic(&*panic)));
        let main = body.unwrap_or_else(|failure| {
            if failure.code() == Some(UNREADABLE) {
                run.interrupt(Interrupt::Park(failure.clone().permanent().into()));
            }
            Box::pin(std::future::ready(Err(failure)))
        });
        TaskStage::Executing(BranchFutures { main, spawned: None, waker: Waker::from(run.clone()) })
    }

    fn execute(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        // all Writes of this poll share a flush, even if the committer is idle: for example, the last
        // checkpoint and the end
        let run = self.run.clone();
        run.begin_poll();
        let polled = self.poll_branches(cx);
        run.end_poll();
        polled
    }

    fn poll_branches(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        self.run.task_waker.register(cx.waker());
        for _ in 0..MAX_POLLS_PER_TURN {
            self.check_deadline(cx);
            if let Some(interrupt) = { self.run.state().take_interrupt() } {
                self.stop(interrupt);
                return Poll::Ready(());
            }
            let TaskStage::Executing(branches) = &mut self.stage else { return Poll::Ready(()) };
            self.run.is_woken.store(false, SeqCst);
            let polled = std::panic::catch_unwind(AssertUnwindSafe(|| branches.poll(&self.run)));
            match polled {
                Ok(Poll::Ready(result)) => {
                    self.finish(result);
                    return Poll::Ready(());
                }
                Err(panic) => {
                    self.finish(Err(Failure::from_panic(&*panic)));
                    return Poll::Ready(());
                }
                Ok(Poll::Pending) => {}
            }
            if self.run.is_woken.load(SeqCst) {
                continue;
            }
            match self.run.deliver_next() {
                Quiescence::Delivered => {}
                // the Start is staged when the guest is quiescent, or with the first Write that depends on it
                Quiescence::Active => return Poll::Pending,
                Quiescence::Idle => {
                    if self.prepare_to_wait(cx) {
                        return Poll::Pending;
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Interrupts the run if its deadline has passed. Otherwise the task is woken at the deadline.
    fn check_deadline(&mut self, cx: &mut TaskContext<'_>) {
        let Some(deadline_at) = self.run.deadline_at else { return };
        while !self.run.check_deadline() {
            let due = tokio::time::Instant::now() + pause_until(deadline_at, self.run.engine.now());
            let timer = self.deadline_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if timer.poll_unpin(cx).is_pending() {
                return;
            }
            // the store's clock may have been set since the timer was created
            self.deadline_timer = None;
        }
    }

    /// Prepares to wait while no delivery can be made: suspends the run if all branches wait for distant
    /// events. Otherwise sets the timer for the suspension. Returns false if the task has to poll again.
    fn prepare_to_wait(&mut self, cx: &mut TaskContext<'_>) -> bool {
        let run = self.run.clone();
        let (durable_waits, unrecorded_sleeps) = match run.prepare_to_wait() {
            IdleState::Interrupted => return false,
            IdleState::NoDurableWait => return true,
            IdleState::TooEarly(until) => return self.wait_until(until, cx),
            IdleState::Waiting { durable_waits, unrecorded_sleeps } => (durable_waits, unrecorded_sleeps),
        };
        let now = run.engine.now();
        let suspend_after = run.engine.options.suspend_after;
        let mut suspend_at = None;
        if run.is_pausing() && run.waits_at_pause().is_some() {
            run.interrupt(Interrupt::Pause);
            return false;
        }
        if let Some(waits) = durable_waits {
            let is_distant = |due_at: Timestamp| due_at.since(now) > suspend_after;
            let are_all_distant =
                waits.iter().all(|(_, waiting_for, _)| waiting_for.due_at().is_none_or(is_distant));
            if are_all_distant {
                // the child may need the thread, also if other branches wait for something else
                let holds_thread = waits.iter().any(|(_, waiting_for, _)| {
                    matches!(waiting_for, WaitingFor::Child(key) if run.holds_thread_for(*key))
                });
                let since = waits.iter().filter_map(|(_, waiting_for, begun_at)| match waiting_for {
                    _ if holds_thread => None,
                    WaitingFor::Child(_) | WaitingFor::Message { .. } | WaitingFor::Event { .. } => {
                        Some(begun_at.plus(suspend_after))
                    }
                    WaitingFor::Timer(_) | WaitingFor::Resume => None,
                });
                suspend_at = since.max().filter(|at| *at > now).or_else(|| run.state().suspendable_at(now));
                if suspend_at.is_none() {
                    run.interrupt(Interrupt::Suspend);
                    return false;
                }
            }
        }
        match suspend_at {
            Some(at) => run.state().calls.note_suspendable_at(at),
            None => run.state().calls.note_active(|| now),
        }
        // the run is not suspended now: record its long sleeps, which must not start over after a crash
        let long_sleeps: Vec<_> =
            unrecorded_sleeps.into_iter().filter(|sleep| sleep.due_at.since(now) > suspend_after).collect();
        if !long_sleeps.is_empty() {
            run.record_pending_sleeps(long_sleeps);
        }
        let Some(at) = suspend_at else {
            self.suspend_timer = None;
            return true;
        };
        self.wait_until(at, cx)
    }

    /// Sets the timer for the suspension. Returns false if the timer has fired.
    fn wait_until(&mut self, at: Timestamp, cx: &mut TaskContext<'_>) -> bool {
        let due = tokio::time::Instant::now() + pause_until(at, self.run.engine.now());
        let timer = self.suspend_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        timer.as_mut().reset(due);
        timer.poll_unpin(cx).is_pending()
    }

    /// Finishes the run with the result of its code.
    fn finish(&mut self, result: Result<Payload, Failure>) {
        let run = self.run.clone();
        let limit = run.engine.options.value_limit;
        let result = result.and_then(|output| {
            if output.len() <= limit {
                return Ok(output);
            }
            let value = format!("the output of workflow {:?}", &*run.definition.name);
            Err(crate::Error::TooLarge { value, size: output.len(), limit }.to_failure())
        });
        let (status, outcome) = match result {
            Ok(output) => (Status::Completed, output),
            Err(failure) => (Status::Failed, Payload::from_failure(&failure)),
        };
        run.check_deadline();
        {
            let mut state = run.state();
            let mismatch = state.early_return_failure().map(|failure| Interrupt::Park(failure.into()));
            if let Some(interrupt) = state.take_interrupt().or(mismatch) {
                drop(state);
                self.stop(interrupt);
                return;
            }
            state.is_closed = true;
            state.stop_reason = Some(StopReason::Ended);
        }
        if run.definition.is_guest() {
            // the other branches end with the workflow, although it did not wait for them
            run.wake_stop_wakers();
        }
        self.drop_code();
        run.engine.deferrals.forget(run.key);
        self.end(status, outcome);
    }

    /// Drops the code of a closed run. Panics of its destructors have no effect on the run.
    fn drop_code(&mut self) {
        let code = std::mem::replace(&mut self.stage, TaskStage::Concluded(Conclusion::LeftProcess));
        let code = std::panic::catch_unwind(AssertUnwindSafe(|| drop(code)));
        let spawned = std::panic::catch_unwind(AssertUnwindSafe(|| self.run.drop_spawned()));
        if code.and(spawned).is_err() {
            tracing::error!(execution = %self.run.key, "a destructor of the workflow panicked");
        }
    }

    /// Stages the end of a closed run's execution, and notifies a parent in this process.
    fn end(&mut self, status: Status, outcome: Payload) {
        let run = self.run.clone();
        let at = run.engine.now();
        let is_inline = outcome.len() <= INLINE_LIMIT;
        let reserved = if is_inline { run.lane().try_reserve(outcome.len() + 128) } else { 0 };
        if reserved == 0 {
            // a task that waits for budget must not hold budget: the Start's budget is released only when the
            // Start is flushed
            let _ = run.ensure_start_staged(&mut run.state());
            self.stage = TaskStage::Storing(Box::pin(async move {
                let target = crate::runtime::run::chunks::ChunkTarget::for_run(&run, run.key);
                let (outcome, reserved) = crate::runtime::run::chunks::store(target, outcome, 0).await;
                (State::Ended { status, outcome, at }, reserved)
            }));
            return;
        }
        self.stage_end(State::Ended { status, outcome, at }, reserved);
    }

    fn stage_end(&mut self, ended: State, reserved: u32) {
        let run = self.run.clone();
        let State::Ended { status, outcome, .. } = ended.clone() else { return };
        let lsn = run.stage_locked(&mut run.state(), run.transition_to(ended), reserved);
        let Some(lsn) = lsn else {
            self.conclude(Conclusion::LeftProcess);
            return;
        };
        crate::crash_point!("end staged");
        let (created_at, of_parent) = (run.created_at, outcome.clone());
        self.notify_parent(ChildState::Ended(ChildEnd { status, outcome: of_parent, created_at, lsn }));
        self.stage = TaskStage::Ending(DurableFuture::new(run, lsn), FinalState::Ended(status, outcome));
    }

    /// Stops code that has not returned.
    fn stop(&mut self, interrupt: Interrupt) {
        let run = self.run.clone();
        run.close();
        let pending_sleeps = {
            let mut state = run.state();
            let is_cancelled = matches!(interrupt, Interrupt::Cancel(_));
            state.stop_reason =
                Some(if is_cancelled { StopReason::Cancelled } else { StopReason::Suspended });
            state.pending_sleeps.to_vec()
        };
        // read the waits before the code is dropped: the code's destructors remove the calls, and record
        // nothing because the run is closed
        let waits = match interrupt {
            Interrupt::Suspend => run.durable_waits(),
            Interrupt::Pause => run.waits_at_pause(),
            _ => None,
        };
        if run.definition.is_guest() {
            // the guest's code unwinds by itself; its waits were read before
            run.wake_stop_wakers();
        }
        self.drop_code();
        self.stage_departure(interrupt, waits, pending_sleeps);
    }

    /// Stages the state in which a stopped run leaves its execution.
    fn stage_departure(
        &mut self,
        interrupt: Interrupt,
        waits: Option<Vec<(crate::path::Path, WaitingFor, crate::clock::Timestamp)>>,
        pending_sleeps: Vec<PendingSleep>,
    ) {
        let run = self.run.clone();
        let (state, final_state) = match interrupt {
            Interrupt::Disowned => {
                self.conclude(Conclusion::LeftProcess);
                return;
            }
            Interrupt::Cancel(failure) => {
                self.cancel(&failure);
                return;
            }
            Interrupt::Fail(failure) => {
                tracing::error!(
                    execution = %run.key,
                    workflow = %run.definition.name,
                    %failure,
                    "execution stopped after killing too many workers"
                );
                self.end(Status::Failed, Payload::from_failure(&failure));
                return;
            }
            Interrupt::Park(failure) => {
                tracing::error!(
                    execution = %run.key,
                    workflow = %run.definition.name,
                    %failure,
                    "execution parked"
                );
                (
                    State::Parked {
                        reason: Payload::from_failure(&failure),
                        pending_sleeps,
                        is_pause: false,
                    },
                    FinalState::Released,
                )
            }
            Interrupt::Pause => {
                tracing::info!(execution = %run.key, workflow = %run.definition.name, "execution paused");
                let pending_sleeps = waits.map_or(pending_sleeps, sleeps_of);
                let reason = Payload::from_failure(&Failure::paused());
                (State::Parked { reason, pending_sleeps, is_pause: true }, FinalState::Released)
            }
            Interrupt::Defer if !run.engine.is_closing() => {
                {
                    let mut state = run.state();
                    // staging the Start registers the run, so that a shutdown finds the run
                    let _ = run.ensure_row_staged(&mut state);
                    state.is_deferred = true;
                }
                let pause = run.engine.deferrals.next_pause(run.key);
                tracing::warn!(
                    execution = %run.key,
                    ?pause,
                    "the code asked the program to exit; execution deferred"
                );
                self.stage = TaskStage::Deferred(Box::pin(tokio::time::sleep(pause)));
                return;
            }
            Interrupt::Continue => (State::Queued { pending_sleeps: Vec::new() }, FinalState::Released),
            Interrupt::Requeue | Interrupt::Defer => (State::Queued { pending_sleeps }, FinalState::Released),
            Interrupt::Suspend => match waits {
                Some(waits) => suspension_state(&run, waits),
                None => (State::Queued { pending_sleeps }, FinalState::Released),
            },
        };
        let lsn = run.stage_locked(&mut run.state(), run.transition_to(state), 0);
        match lsn {
            Some(lsn) => {
                if matches!(final_state, FinalState::Suspended(_)) {
                    crate::crash_point!("suspension staged");
                }
                self.notify_parent(ChildState::Remote);
                self.stage = TaskStage::Ending(DurableFuture::new(run, lsn), final_state);
            }
            None => self.conclude(Conclusion::LeftProcess),
        }
    }

    /// Polls until the pause is over or another interrupt arrives, then stages the state in which the run
    /// leaves the execution.
    fn poll_deferral(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        let TaskStage::Deferred(pause) = &mut self.stage else { return Poll::Ready(()) };
        let run = self.run.clone();
        run.task_waker.register(cx.waker());
        let is_pause_over = pause.poll_unpin(cx).is_ready();
        let (interrupt, pending_sleeps) = {
            let mut state = run.state();
            let Some(interrupt) = state.interrupt.take().or(is_pause_over.then_some(Interrupt::Requeue))
            else {
                return Poll::Pending;
            };
            state.is_deferred = false;
            (interrupt, state.pending_sleeps.to_vec())
        };
        self.stage_departure(interrupt, None, pending_sleeps);
        Poll::Ready(())
    }

    /// Ends a closed run as cancelled, after requesting the cancellation of its awaited children.
    fn cancel(&mut self, failure: &Failure) {
        let run = self.run.clone();
        let children = take_unended_children(&run);
        if run.is_replayed {
            // the code may not have reached the point where an earlier run started a child
            self.stage =
                TaskStage::LoadingChildren(Box::pin(load_awaited_children(run, children)), failure.clone());
        } else {
            self.cancel_with_children(children, failure);
        }
    }

    fn cancel_with_children(&mut self, children: Vec<Key>, failure: &Failure) {
        cancel_children(&self.run, children, failure);
        self.end(Status::Cancelled, Payload::from_failure(failure));
    }

    /// Notifies the parent that awaits the execution. Returns true if no parent awaits the execution, or if
    /// the parent runs here and was notified.
    fn notify_parent(&self, state: ChildState) -> bool {
        let Some(parent) = self.run.parent.as_ref().filter(|parent| !parent.is_detached) else { return true };
        self.run.engine.runs.get(parent.key).is_some_and(|parent| parent.update_child(self.run.key, state))
    }

    fn conclude(&mut self, conclusion: Conclusion) {
        self.run.engine.runs.remove(&self.run);
        // a parent that was notified of the end keeps that state
        self.notify_parent(ChildState::Remote);
        if self.run.is_replayed
            && self.run.definition.holds_thread()
            && self.run.engine.read_ahead.note_concluded()
        {
            self.run.engine.wakeups.wake_claimer(true);
        }
        self.run.engine.release_slot();
        self.run.conclude(conclusion.clone());
        self.stage = TaskStage::Concluded(conclusion);
    }

    /// Handles the outcome of the last Write.
    fn finish_final_write(&mut self, outcome: &Outcome) {
        let TaskStage::Ending(_, final_state) =
            std::mem::replace(&mut self.stage, TaskStage::Concluded(Conclusion::LeftProcess))
        else {
            return;
        };
        let final_state = match (outcome, final_state) {
            (Outcome::Applied, final_state) => final_state,
            (Outcome::Cancelled, FinalState::Ended(..)) => {
                // a cancel arrived before the end: the awaited children are cancelled too
                let run = self.run.clone();
                run.engine.runtime.clone().spawn(async move {
                    let known = take_unended_children(&run);
                    if let Ok(children) = load_awaited_children(run.clone(), known).await {
                        cancel_children(&run, children, &Failure::cancelled());
                    }
                });
                FinalState::Ended(Status::Cancelled, cancel_outcome())
            }
            _ => {
                self.conclude(Conclusion::LeftProcess);
                return;
            }
        };
        let run = self.run.clone();
        match final_state {
            FinalState::Ended(status, payload) => {
                crate::crash_point!("end durable");
                // a parent that does not run here is woken, and reads the end from the database
                if let Some(parent) = run.parent.as_ref().filter(|parent| !parent.is_detached)
                    && run.engine.runs.get(parent.key).is_none_or(|parent| !parent.is_open())
                {
                    run.engine.stage_unowned(run.root, Write::Wake(parent.key));
                }
                self.conclude(Conclusion::Ended(status, payload));
            }
            FinalState::Suspended(has_waits) => {
                crate::crash_point!("suspension durable");
                // an event may have happened before this commit: its Wake then found no waiting execution
                if has_waits {
                    run.engine.stage_unowned(run.root, Write::Wake(run.key));
                }
                self.conclude(Conclusion::LeftProcess);
            }
            FinalState::Released => self.conclude(Conclusion::LeftProcess),
        }
    }

    /// Whether the run has concluded, or only waits until its last Write is durable.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.stage, TaskStage::Ending(..) | TaskStage::Concluded(_))
    }

    /// Polls for the outcome of the Start.
    pub(crate) fn poll_start(&mut self, cx: &mut TaskContext<'_>, input: &Payload) -> Poll<Outcome> {
        let TaskStage::Starting(durable) = &mut self.stage else { return Poll::Ready(Outcome::Applied) };
        let outcome = std::task::ready!(durable.poll_unpin(cx));
        if outcome == Outcome::Applied {
            self.stage = Self::begin_code(&self.run, input);
        } else {
            self.run.close();
            self.conclude(Conclusion::LeftProcess);
            if outcome == Outcome::Queued {
                self.run.engine.wakeups.wake_claimer(true);
            }
        }
        Poll::Ready(outcome)
    }

    /// Executes the code until it is blocked. From then on the caller has to poll or detach the run.
    pub(crate) fn run_until_blocked(&mut self, cx: &mut TaskContext<'_>) {
        if matches!(self.stage, TaskStage::Executing(_)) {
            let _ = self.execute(cx);
        }
    }

    /// Polls the run until it has concluded. `input` is read only until the code has begun.
    pub(crate) fn poll_conclusion(&mut self, cx: &mut TaskContext<'_>, input: &Payload) -> Poll<Conclusion> {
        loop {
            match &mut self.stage {
                TaskStage::Starting(_) => {
                    std::task::ready!(self.poll_start(cx, input));
                }
                TaskStage::Executing(_) => std::task::ready!(self.execute(cx)),
                TaskStage::Deferred(_) => std::task::ready!(self.poll_deferral(cx)),
                TaskStage::LoadingChildren(loading, failure) => {
                    let children = std::task::ready!(loading.poll_unpin(cx));
                    let failure = failure.clone();
                    match children {
                        Ok(children) => self.cancel_with_children(children, &failure),
                        // the worker that claims the execution next finds it unchanged
                        Err(Error::Unavailable(_)) => self.conclude(Conclusion::LeftProcess),
                        Err(error) => {
                            let reason = format!("the execution's children cannot be read: {error}");
                            let failure = Failure::with_kind(UNREADABLE, reason).permanent();
                            self.stop(Interrupt::Park(failure.into()));
                        }
                    }
                }
                TaskStage::Storing(storing) => {
                    let (state, reserved) = std::task::ready!(storing.poll_unpin(cx));
                    self.stage_end(state, reserved);
                }
                TaskStage::Ending(durable, _) => {
                    let outcome = std::task::ready!(durable.poll_unpin(cx));
                    self.finish_final_write(&outcome);
                }
                TaskStage::Concluded(conclusion) => return Poll::Ready(conclusion.clone()),
            }
        }
    }
}

impl BranchFutures {
    fn poll(&mut self, run: &Run) -> Poll<Result<Payload, Failure>> {
        let cx = &mut TaskContext::from_waker(&self.waker);
        if let Poll::Ready(result) = self.main.poll_unpin(cx) {
            return Poll::Ready(result);
        }
        let spawned = std::mem::take(&mut run.state().spawned);
        if !spawned.is_empty() {
            self.spawned.get_or_insert_default().extend(spawned);
        }
        if let Some(spawned) = &mut self.spawned {
            while let Poll::Ready(Some(())) = spawned.poll_next_unpin(cx) {}
        }
        Poll::Pending
    }
}

/// Returns the state of a suspended execution, from the durable waits of its branches.
fn suspension_state(
    run: &Run,
    waits: Vec<(crate::path::Path, WaitingFor, crate::clock::Timestamp)>,
) -> (State, FinalState) {
    let mut wake_at = run.deadline_at;
    let (mut wake_conditions, mut pending_sleeps) = (Vec::new(), Vec::new());
    for (path, waiting_for, _) in waits {
        if let Some(due_at) = waiting_for.due_at() {
            wake_at = Some(wake_at.map_or(due_at, |other| other.min(due_at)));
            pending_sleeps.push(PendingSleep { path, due_at });
        }
        match waiting_for {
            WaitingFor::Child(key) => wake_conditions.push(Wait::Child(key)),
            WaitingFor::Message { topic, .. } => wake_conditions.push(Wait::Message(topic)),
            WaitingFor::Event { setter, name, .. } => wake_conditions.push(Wait::Event(setter, name)),
            WaitingFor::Timer(_) | WaitingFor::Resume => {}
        }
    }
    let has_waits = !wake_conditions.is_empty();
    (State::Waiting { wake_at, waits: wake_conditions, pending_sleeps }, FinalState::Suspended(has_waits))
}

/// Returns the sleeps among the durable waits of a run.
fn sleeps_of(waits: Vec<(crate::path::Path, WaitingFor, crate::clock::Timestamp)>) -> Vec<PendingSleep> {
    let sleep = |(path, waiting_for, _): (_, WaitingFor, _)| {
        Some(PendingSleep { path, due_at: waiting_for.due_at()? })
    };
    waits.into_iter().filter_map(sleep).collect()
}

/// Returns the length of the next sleep on the way to `at`: at most the recheck interval, plus 1 ms. `now` is
/// the estimate of the store's time.
fn pause_until(at: Timestamp, now: Timestamp) -> std::time::Duration {
    at.since(now).min(CLOCK_RECHECK_INTERVAL) + std::time::Duration::from_millis(1)
}
