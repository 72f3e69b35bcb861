//! [`RunTask`]: the future that runs an execution to its conclusion.
//!
//! It polls the workflow's code; whenever all branches have come to rest it makes the next delivery. It
//! stages the execution's end, waits until that is durable, and only then lets anybody know.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context as TaskContext, Poll, Waker};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::children::{awaited_children, cancel_children, unended_children};
use super::detached::{Detached, Ender};
use crate::clock::Timestamp;
use crate::commit::{DurableFuture, Lsn};
use crate::error::Error;
use crate::failure::{Failure, UNREADABLE};
use crate::key::Key;
use crate::payload::{INLINE_LIMIT, Payload};
use crate::runtime::definition::BodyFuture;
use crate::runtime::run::call::{LONGEST_NAP, Settling, WaitingFor};
use crate::runtime::run::quiescence::Rest;
use crate::runtime::run::{ChildEnd, ChildState, Conclusion, Interrupt, Run, Stopped};
use crate::store::{Outcome, State, Status, Write, cancel_outcome};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs an execution. Resolves when its conclusion is known and told.
pub(crate) struct RunTask {
    run: Arc<Run>,
    stage: Stage,
    /// Rings when the run may have waited long enough to suspend.
    alarm: Option<Pin<Box<tokio::time::Sleep>>>,
    /// Rings at the deadline, whatever the code does then.
    deadline: Option<Pin<Box<tokio::time::Sleep>>>,
}

enum Stage {
    /// Waits for the outcome of its Start before any code runs.
    Starting(DurableFuture<Arc<Run>>),
    Executing(Branches),
    /// Put off: waits before it is handed back.
    PutOff(Pin<Box<tokio::time::Sleep>>),
    /// Cancelled: asks the database which children a run before this one has left.
    Asking(Boxed<Result<Vec<Key>, Error>>, Failure),
    /// Puts aside an output that is too large for the row, or waits for room.
    Storing(Boxed<(State, u32)>),
    /// Waits until its last Write is durable.
    Ending(DurableFuture<Arc<Run>>, Ending),
    Concluded(Conclusion),
}

/// What is true once the last Write is durable.
enum Ending {
    Ended(Status, Payload),
    /// Suspended; true if it waits for children, whose ends may have come meanwhile.
    Suspended(bool),
    Left,
}

/// The workflow's own branch, and those that were spawned.
struct Branches {
    main: BodyFuture,
    /// Most have none.
    spawned: Option<FuturesUnordered<Boxed<()>>>,
    waker: Waker,
}

/// Polls before other tasks of the thread get their turn.
const POLLS: usize = 64;

impl RunTask {
    /// A task that runs at once; its Start is staged when something depends on it.
    pub(crate) fn executing(run: Arc<Run>, input: &Payload) -> Self {
        let stage = Self::branches(&run, input);
        Self { run, stage, alarm: None, deadline: None }
    }

    /// A task that runs when its Start, staged as `lsn`, is durable and has won.
    pub(crate) fn starting(run: Arc<Run>, lsn: Lsn) -> Self {
        let stage = Stage::Starting(DurableFuture::new(run.clone(), lsn));
        Self { run, stage, alarm: None, deadline: None }
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    fn branches(run: &Arc<Run>, input: &Payload) -> Stage {
        let (body, own) = (&run.definition.body, run.clone());
        let body = std::panic::catch_unwind(AssertUnwindSafe(|| body(own, input)))
            .unwrap_or_else(|panic| Err(Failure::from_panic(&*panic)));
        let main = body.unwrap_or_else(|failure| {
            if failure.code() == Some(UNREADABLE) {
                run.interrupt(Interrupt::Park(failure.clone().permanent().into()));
            }
            Box::pin(std::future::ready(Err(failure)))
        });
        Stage::Executing(Branches { main, spawned: None, waker: Waker::from(run.clone()) })
    }

    fn execute(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        // the last checkpoint and the end share a flush, also when the committer is idle
        let run = self.run.clone();
        run.begin_poll();
        let polled = self.execute_polled(cx);
        run.end_poll();
        polled
    }

    fn execute_polled(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        self.run.task.register(cx.waker());
        for _ in 0..POLLS {
            self.heed_deadline(cx);
            if let Some(interrupt) = { self.run.state().take_interrupt() } {
                self.stop(interrupt);
                return Poll::Ready(());
            }
            let Stage::Executing(branches) = &mut self.stage else { return Poll::Ready(()) };
            self.run.is_woken.store(false, SeqCst);
            let polled = std::panic::catch_unwind(AssertUnwindSafe(|| branches.poll(&self.run)));
            match polled {
                Ok(Poll::Ready(result)) => {
                    self.end_with(result);
                    return Poll::Ready(());
                }
                Err(panic) => {
                    self.end_with(Err(Failure::from_panic(&*panic)));
                    return Poll::Ready(());
                }
                Ok(Poll::Pending) => {}
            }
            if self.run.is_woken.load(SeqCst) {
                continue;
            }
            match self.run.rest() {
                Rest::Delivered => {}
                // its Start is staged when it comes to rest, or with the first thing that depends on it
                Rest::Restless => return Poll::Pending,
                Rest::Idle => {
                    if self.settle_down(cx) {
                        return Poll::Pending;
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Interrupts the run if its deadline has passed; else the task is woken at the deadline.
    fn heed_deadline(&mut self, cx: &mut TaskContext<'_>) {
        let Some(deadline_at) = self.run.deadline_at else { return };
        while !self.run.heed_deadline() {
            let due = tokio::time::Instant::now() + nap_until(deadline_at, self.run.core.now());
            let alarm = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if alarm.poll_unpin(cx).is_pending() {
                return;
            }
            // the store's clock may have been set meanwhile
            self.deadline = None;
        }
    }

    /// Nothing to deliver: suspends if all branches wait for something far away, else sets the alarm.
    /// False if there is something to do after all.
    fn settle_down(&mut self, cx: &mut TaskContext<'_>) -> bool {
        let run = self.run.clone();
        let (all, unarmed) = match run.settle_down() {
            Settling::Interrupted => return false,
            Settling::Busy => return true,
            Settling::Waiting { all, unarmed } => (all, unarmed),
        };
        let now = run.core.now();
        let patience = run.core.options.suspend_after;
        let mut look_at = None;
        if let Some(waits) = all {
            let is_far = waits.iter().all(|(_, waiting_for, _)| match waiting_for {
                WaitingFor::Timer(due_at) => due_at.since(now) > patience,
                WaitingFor::Child(_) => true,
            });
            if is_far {
                let since = waits.iter().filter_map(|(_, waiting_for, begun_at)| match waiting_for {
                    WaitingFor::Child(key) if run.wastes_a_thread(*key) => Some(now),
                    WaitingFor::Child(_) => Some(begun_at.plus(patience)),
                    WaitingFor::Timer(_) => None,
                });
                match since.max() {
                    Some(at) if at > now => look_at = Some(at),
                    _ => {
                        run.interrupt(Interrupt::Suspend);
                        return false;
                    }
                }
            }
        }
        // other branches are busy: a crash must not make a long sleep begin again
        let long: Vec<_> = unarmed.into_iter().filter(|armed| armed.due_at.since(now) > patience).collect();
        if !long.is_empty() {
            run.arm(long);
        }
        let Some(at) = look_at else {
            self.alarm = None;
            return true;
        };
        let due = tokio::time::Instant::now() + nap_until(at, now);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        alarm.as_mut().reset(due);
        alarm.poll_unpin(cx).is_pending()
    }

    /// The code has returned.
    fn end_with(&mut self, result: Result<Payload, Failure>) {
        let run = self.run.clone();
        let limit = run.core.options.value_limit;
        let result = result.and_then(|output| {
            if output.len() <= limit {
                return Ok(output);
            }
            let what = format!("the output of workflow {:?}", &*run.definition.name);
            Err(crate::Error::TooLarge { what, size: output.len(), limit }.to_failure())
        });
        let (status, outcome) = match result {
            Ok(output) => (Status::Completed, output),
            Err(failure) => (Status::Failed, Payload::from_failure(&failure)),
        };
        run.heed_deadline();
        {
            let mut state = run.state();
            let early = state.ends_early().map(|failure| Interrupt::Park(failure.into()));
            if let Some(interrupt) = state.take_interrupt().or(early) {
                drop(state);
                self.stop(interrupt);
                return;
            }
            state.is_closed = true;
            state.stopped = Some(Stopped::Ended);
        }
        if run.definition.is_guest() {
            // branches that nobody waited for end with it
            run.wake_stopped();
        }
        self.drop_code();
        run.core.put_offs.forget(run.key);
        self.end(status, outcome);
    }

    /// Drops the code of a closed run. Its destructors run, and what panics there changes nothing.
    fn drop_code(&mut self) {
        let code = std::mem::replace(&mut self.stage, Stage::Concluded(Conclusion::Gone));
        let code = std::panic::catch_unwind(AssertUnwindSafe(|| drop(code)));
        let spawned = std::panic::catch_unwind(AssertUnwindSafe(|| self.run.drop_spawned()));
        if code.and(spawned).is_err() {
            tracing::error!(execution = %self.run.key, "a destructor of the workflow panicked");
        }
    }

    /// Stages the end of an execution whose gate is closed, and tells a parent that waits in memory.
    fn end(&mut self, status: Status, outcome: Payload) {
        let run = self.run.clone();
        let at = run.core.now();
        let is_inline = outcome.len() <= INLINE_LIMIT;
        let room = if is_inline { run.lane().try_reserve(outcome.len() + 128) } else { 0 };
        if room == 0 {
            // whoever waits for room must not keep any: what the Start has taken comes back only when it lands
            let _ = run.start_in(&mut run.state());
            self.stage = Stage::Storing(Box::pin(async move {
                let place = crate::runtime::run::chunks::Place::of(&run, run.key);
                let (outcome, room) = crate::runtime::run::chunks::store(place, outcome).await;
                (State::Ended { status, outcome, at }, room)
            }));
            return;
        }
        self.stage_end(State::Ended { status, outcome, at }, room);
    }

    fn stage_end(&mut self, ended: State, room: u32) {
        let run = self.run.clone();
        let State::Ended { status, outcome, .. } = ended.clone() else { return };
        let lsn = run.stage_in(&mut run.state(), run.to_state(ended), room);
        let Some(lsn) = lsn else {
            self.conclude(Conclusion::Gone);
            return;
        };
        crate::crash_point!("end staged");
        self.tell_parent(ChildState::Ended(ChildEnd { status, outcome: outcome.clone(), lsn }));
        self.stage = Stage::Ending(DurableFuture::new(run, lsn), Ending::Ended(status, outcome));
    }

    /// Stops code that has not returned.
    fn stop(&mut self, interrupt: Interrupt) {
        let run = self.run.clone();
        run.close();
        let armed = {
            let mut state = run.state();
            let is_cancelled = matches!(interrupt, Interrupt::Cancel(_));
            state.stopped = Some(if is_cancelled { Stopped::Cancelled } else { Stopped::Suspended });
            state.armed.clone()
        };
        // dropping the code runs its destructors; the gate is closed, so they record nothing
        let waits = if matches!(interrupt, Interrupt::Suspend) { run.waits() } else { None };
        if run.definition.is_guest() {
            // it unwinds by itself, and what it waited for is known
            run.wake_stopped();
        }
        self.drop_code();
        self.leave(interrupt, waits, armed);
    }

    /// Stages what becomes of a closed run whose code is gone.
    fn leave(
        &mut self,
        interrupt: Interrupt,
        waits: Option<Vec<(crate::path::Path, WaitingFor, crate::clock::Timestamp)>>,
        armed: Vec<crate::store::PendingSleep>,
    ) {
        let run = self.run.clone();
        let (state, ending) = match interrupt {
            Interrupt::Lost => {
                self.conclude(Conclusion::Gone);
                return;
            }
            Interrupt::Cancel(failure) => {
                self.cancel(&failure);
                return;
            }
            Interrupt::Fail(failure) => {
                tracing::error!(execution = %run.key, workflow = %run.definition.name, %failure, "given up");
                self.end(Status::Failed, Payload::from_failure(&failure));
                return;
            }
            Interrupt::Park(failure) => {
                tracing::error!(execution = %run.key, workflow = %run.definition.name, %failure, "parked");
                (State::Parked { reason: Payload::from_failure(&failure), armed }, Ending::Left)
            }
            Interrupt::PutOff if !run.core.is_closing() => {
                {
                    let mut state = run.state();
                    // who ends the engine has to find it
                    let _ = run.start_in(&mut state);
                    state.is_put_off = true;
                }
                let pause = run.core.put_offs.next_pause(run.key);
                tracing::warn!(execution = %run.key, ?pause, "the code wants the program to end: put off");
                self.stage = Stage::PutOff(Box::pin(tokio::time::sleep(pause)));
                return;
            }
            Interrupt::HandBack | Interrupt::PutOff => (State::Queued { armed }, Ending::Left),
            Interrupt::Suspend => match waits {
                Some(waits) => suspended(&run, waits),
                None => (State::Queued { armed }, Ending::Left),
            },
        };
        let lsn = run.stage_in(&mut run.state(), run.to_state(state), 0);
        match lsn {
            Some(lsn) => {
                if matches!(ending, Ending::Suspended(_)) {
                    crate::crash_point!("suspension staged");
                }
                self.tell_parent(ChildState::Elsewhere);
                self.stage = Stage::Ending(DurableFuture::new(run, lsn), ending);
            }
            None => self.conclude(Conclusion::Gone),
        }
    }

    /// Waits until it is to be handed back, or something else is to become of it.
    fn poll_put_off(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        let Stage::PutOff(pause) = &mut self.stage else { return Poll::Ready(()) };
        let run = self.run.clone();
        run.task.register(cx.waker());
        let is_over = pause.poll_unpin(cx).is_ready();
        let (interrupt, armed) = {
            let mut state = run.state();
            let Some(interrupt) = state.interrupt.take().or(is_over.then_some(Interrupt::HandBack)) else {
                return Poll::Pending;
            };
            state.is_put_off = false;
            (interrupt, state.armed.clone())
        };
        self.leave(interrupt, None, armed);
        Poll::Ready(())
    }

    /// Ends a closed run as cancelled, after asking the same of the children it waits for.
    fn cancel(&mut self, failure: &Failure) {
        let run = self.run.clone();
        let children = unended_children(&run);
        if run.is_replayed {
            // its code may not have come to where an earlier run started a child
            self.stage = Stage::Asking(Box::pin(awaited_children(run, children)), failure.clone());
        } else {
            self.cancel_with(children, failure);
        }
    }

    fn cancel_with(&mut self, children: Vec<Key>, failure: &Failure) {
        cancel_children(&self.run, children, failure);
        self.end(Status::Cancelled, Payload::from_failure(failure));
    }

    /// True if a parent in this process has taken note.
    fn tell_parent(&self, signal: ChildState) -> bool {
        let Some(parent) = self.run.parent.as_ref().filter(|parent| !parent.is_detached) else { return true };
        self.run.core.runs.get(parent.key).is_some_and(|parent| parent.child_signal(self.run.key, signal))
    }

    fn conclude(&mut self, conclusion: Conclusion) {
        self.run.core.runs.remove(&self.run);
        // a parent that has heard of the end keeps that
        self.tell_parent(ChildState::Elsewhere);
        self.run.core.release_slot();
        if self.run.is_replayed && self.run.definition.holds_thread() && self.run.core.read_ahead.ended() {
            self.run.core.wake_worker(true);
        }
        self.run.conclude(conclusion.clone());
        self.stage = Stage::Concluded(conclusion);
    }

    /// The last Write came to `outcome`.
    fn ended(&mut self, outcome: &Outcome) {
        let Stage::Ending(_, ending) = std::mem::replace(&mut self.stage, Stage::Concluded(Conclusion::Gone))
        else {
            return;
        };
        let ending = match (outcome, ending) {
            (Outcome::Applied, ending) => ending,
            (Outcome::Cancelled, Ending::Ended(..)) => {
                // a cancel met the end: the children that the execution waited for are asked the same
                let run = self.run.clone();
                run.core.runtime.clone().spawn(async move {
                    let known = unended_children(&run);
                    if let Ok(children) = awaited_children(run.clone(), known).await {
                        cancel_children(&run, children, &Failure::cancelled());
                    }
                });
                Ending::Ended(Status::Cancelled, cancel_outcome())
            }
            _ => {
                self.conclude(Conclusion::Gone);
                return;
            }
        };
        let run = self.run.clone();
        match ending {
            Ending::Ended(status, payload) => {
                crate::crash_point!("end durable");
                // a parent that is not in memory looks at the database, after our commit
                if let Some(parent) = run.parent.as_ref().filter(|parent| !parent.is_detached)
                    && run.core.runs.get(parent.key).is_none_or(|parent| !parent.is_open())
                {
                    run.core.stage_free(run.root, Write::Wake(parent.key));
                }
                self.conclude(Conclusion::Ended(status, payload));
            }
            Ending::Suspended(for_children) => {
                crate::crash_point!("suspension durable");
                // a child may have ended between the look and the commit: its waker then saw nobody wait
                if for_children {
                    run.core.stage_free(run.root, Write::Wake(run.key));
                }
                self.conclude(Conclusion::Gone);
            }
            Ending::Left => self.conclude(Conclusion::Gone),
        }
    }

    /// Sees to it that the run concludes, with nobody waiting for it: in a task of its own, unless only the
    /// flush of its end is missing. What is to be kept is kept until the outcome of the Start is known.
    pub(crate) fn detach(mut self, input: Payload, mut keep: Option<impl Send + 'static>) {
        if keep.is_none() && matches!(self.stage, Stage::Ending(..) | Stage::Concluded(_)) {
            let ender = Arc::new(Ender(std::sync::Mutex::new(None)));
            ender.poll(self);
            return;
        }
        let runtime = self.run.core.runtime.clone();
        if keep.is_none() {
            // what is detached may wait for long, in great numbers: its task is small
            runtime.spawn(Detached { task: self, input });
            return;
        }
        runtime.spawn(async move {
            std::future::poll_fn(|cx| {
                let polled = self.poll_conclusion(cx, &input);
                if keep.is_some() && self.run.is_start_settled() {
                    keep = None;
                }
                polled
            })
            .await;
            // after a fence the run is gone, and its Start is staged again
            if keep.is_some()
                && let Some(lsn) = self.run.start_lsn()
            {
                self.run.lane().wait_durable(lsn).await;
            }
        });
    }

    /// Polls until the outcome of the Start is known.
    pub(crate) fn poll_started(&mut self, cx: &mut TaskContext<'_>, input: &Payload) -> Poll<Outcome> {
        let Stage::Starting(durable) = &mut self.stage else { return Poll::Ready(Outcome::Applied) };
        let outcome = std::task::ready!(durable.poll_unpin(cx));
        if outcome == Outcome::Applied {
            self.stage = Self::branches(&self.run, input);
        } else {
            self.run.close();
            self.conclude(Conclusion::Gone);
            if outcome == Outcome::Queued {
                self.run.core.wake_worker(true);
            }
        }
        Poll::Ready(outcome)
    }

    /// Lets the code run as far as it comes by itself. Whatever the run waits for then, somebody else has to
    /// poll it.
    pub(crate) fn take_turn(&mut self, cx: &mut TaskContext<'_>) {
        if matches!(self.stage, Stage::Executing(_)) {
            let _ = self.execute(cx);
        }
    }

    /// Polls to the conclusion. `input` is needed while the Start is not known.
    pub(crate) fn poll_conclusion(&mut self, cx: &mut TaskContext<'_>, input: &Payload) -> Poll<Conclusion> {
        loop {
            match &mut self.stage {
                Stage::Starting(_) => {
                    std::task::ready!(self.poll_started(cx, input));
                }
                Stage::Executing(_) => std::task::ready!(self.execute(cx)),
                Stage::PutOff(_) => std::task::ready!(self.poll_put_off(cx)),
                Stage::Asking(asking, failure) => {
                    let children = std::task::ready!(asking.poll_unpin(cx));
                    let failure = failure.clone();
                    match children {
                        Ok(children) => self.cancel_with(children, &failure),
                        // whoever claims the execution next finds it as it was
                        Err(Error::Unavailable(_)) => self.conclude(Conclusion::Gone),
                        Err(error) => {
                            let reason = format!("its children cannot be read: {error}");
                            let failure = Failure::with_kind(UNREADABLE, reason).permanent();
                            self.stop(Interrupt::Park(failure.into()));
                        }
                    }
                }
                Stage::Storing(storing) => {
                    let (state, room) = std::task::ready!(storing.poll_unpin(cx));
                    self.stage_end(state, room);
                }
                Stage::Ending(durable, _) => {
                    let outcome = std::task::ready!(durable.poll_unpin(cx));
                    self.ended(&outcome);
                }
                Stage::Concluded(conclusion) => return Poll::Ready(conclusion.clone()),
            }
        }
    }
}

impl Branches {
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

/// The state of a run that suspends, from what its branches wait for.
fn suspended(
    run: &Run,
    waits: Vec<(crate::path::Path, WaitingFor, crate::clock::Timestamp)>,
) -> (State, Ending) {
    let mut wake_at = run.deadline_at;
    let (mut children, mut armed) = (Vec::new(), Vec::new());
    for (path, waiting_for, _) in waits {
        match waiting_for {
            WaitingFor::Timer(due_at) => {
                wake_at = Some(wake_at.map_or(due_at, |other| other.min(due_at)));
                armed.push(crate::store::PendingSleep { path, due_at });
            }
            WaitingFor::Child(key) => children.push(key),
        }
    }
    let for_children = !children.is_empty();
    (State::Waiting { wake_at, children, armed }, Ending::Suspended(for_children))
}

/// Returns how long to sleep until `at`, as far as is known `now`.
fn nap_until(at: Timestamp, now: Timestamp) -> std::time::Duration {
    at.since(now).min(LONGEST_NAP) + std::time::Duration::from_millis(1)
}
