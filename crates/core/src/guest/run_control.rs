//! [`RunControl`]: how code outside of a run queries and controls the run.

use std::sync::Arc;
use std::task::Waker;

use crate::failure::{Failure, UNREADABLE};
use crate::key::Key;
use crate::runtime::run::StopReason;
use crate::runtime::run::quiescence::BlockedOn;
use crate::runtime::run::quiescence::races::RacePlace;
use crate::runtime::run::{Interrupt, Run, ThreadUse};

/// The control of one run of an execution. Once the run is closed, no outcome is delivered any more.
#[derive(Clone)]
pub struct RunControl {
    run: Arc<Run>,
    /// The place of a branch in a race; `None` outside of races.
    place: Option<Arc<RacePlace>>,
}

impl RunControl {
    pub(super) fn new(run: &Arc<Run>, place: Option<&Arc<RacePlace>>) -> Self {
        Self { run: run.clone(), place: place.cloned() }
    }

    /// Whether the branch, or one around it, is in a race, and may have to unwind when another branch wins.
    pub fn is_in_race(&self) -> bool {
        self.place.is_some()
    }

    /// Whether another branch has won a race. This branch then has to unwind, and makes no durable call any more.
    pub fn has_lost_race(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.has_lost())
    }

    /// Registers a waker for the moment when the code has to unwind. Returns false if the code already has to unwind.
    pub fn add_stop_waker(&self, waker: &Waker) -> bool {
        let is_added = self.run.add_stop_waker(waker);
        // a race that was decided before has not woken this waker
        if is_added && self.has_lost_race() {
            self.run.remove_stop_waker(waker);
            return false;
        }
        is_added
    }

    /// Removes a waker that [`RunControl::add_stop_waker`] has registered.
    pub fn remove_stop_waker(&self, waker: &Waker) {
        self.run.remove_stop_waker(waker);
    }

    /// Returns the reason for which the code has to unwind, or `None` while it need not unwind.
    pub fn stop_reason(&self) -> Option<StopReason> {
        let stop_reason = self.run.state().stop_reason;
        stop_reason.or_else(|| self.has_lost_race().then_some(StopReason::LostRace))
    }

    /// Whether a body that was permitted to begin may still begin. Call this right before the body, in the thread that
    /// runs the body: since the permission, the thread may have waited for its language's runtime.
    pub fn can_begin_body(&self) -> bool {
        !self.has_lost_race() && self.run.can_begin_body()
    }

    /// Requeues the execution at the next poll of its task. The worker that claims the execution continues it from its
    /// record. From here on, nothing that the code does is recorded.
    pub fn requeue(&self) {
        if self.run.is_open() {
            self.run.interrupt(Interrupt::Requeue);
        }
    }

    /// Defers the execution, because its code has asked the program to end. Nothing more is recorded. The execution
    /// is requeued when the engine shuts down, or else after a back-off that begins with 1 s and grows each time.
    /// Code that asks for the end every time therefore keeps no worker busy, and does not restart in a program that is
    /// about to end.
    pub fn defer(&self) {
        self.run.interrupt(Interrupt::Defer);
    }

    /// Returns the execution's key.
    pub fn key(&self) -> Key {
        self.run.key
    }

    /// Returns the execution's workflow_id.
    pub fn workflow_id(&self) -> String {
        self.run.key.workflow_id(self.run.given_id.as_deref())
    }

    /// Adds `by` to the number of cancelled calls whose branches have not continued yet. Nothing is delivered while
    /// this number is above 0.
    pub fn add_cancelled_calls(&self, by: i32) {
        let needs_wake = {
            let mut state = self.run.state();
            state.guest.cancelled_calls = state.guest.cancelled_calls.saturating_add_signed(by);
            state.guest.cancelled_calls == 0 && state.needs_quiescence()
        };
        if needs_wake {
            self.run.wake_task();
        }
    }

    /// Returns the name of the execution's workflow.
    pub fn workflow(&self) -> Arc<str> {
        self.run.definition.name.clone()
    }

    /// Declares that the code holds a thread while it waits for a child. The execution is then suspended at once,
    /// unless the thread runs the child itself (`is_hosting`) and the child begins here.
    pub fn set_thread_use(&self, is_hosting: bool) {
        self.run.state().guest.thread_use =
            Some(if is_hosting { ThreadUse::HostsChild } else { ThreadUse::Idle });
    }

    /// Returns an id that distinguishes the runs in this process, including several runs of one execution.
    pub fn run_id(&self) -> u64 {
        Arc::as_ptr(&self.run) as u64
    }

    /// Whether recording has stopped, or is about to: the code has to unwind now, or soon.
    pub fn is_closing(&self) -> bool {
        if self.has_lost_race() {
            return true;
        }
        let state = self.run.state();
        state.is_closed || state.interrupt.is_some()
    }

    /// Parks the execution because a recorded value cannot be read.
    pub fn park(&self, reason: &str) {
        let text = format!("workflow {:?}: {reason}", &*self.run.definition.name);
        let failure = Failure::with_kind(UNREADABLE, text).permanent();
        self.run.interrupt(Interrupt::Park(failure.into()));
    }

    /// Reports that a branch's code runs from now on, until [`RunControl::code_blocked`].
    pub fn code_started(&self) {
        self.run.code_started();
    }

    /// Reports that a branch's code has blocked, or has ended. Returns true if the caller must from now on poll
    /// [`RunControl::activity`] on every turn of its loop, and report when all branches are quiescent.
    pub fn code_blocked(&self) -> bool {
        self.run.code_blocked()
    }

    /// Returns a number that changes with every activity of the branches, or `None` if polling may stop.
    pub fn activity(&self) -> Option<u32> {
        self.run.activity()
    }

    /// Whether the argument of [`RunControl::set_quiescent`] matters for branches that are blocked now.
    pub fn needs_blocked_on(&self) -> bool {
        self.run.needs_blocked_on()
    }

    /// Reports that no branch's code runs, and that none can run before a delivery or an external event. The caller may
    /// stop polling [`RunControl::activity`].
    pub fn set_quiescent(&self, blocked_on: BlockedOn) {
        self.run.set_quiescent(blocked_on);
    }

    /// Returns the number of branches that have not ended and do not wait for branches of their own.
    pub fn branch_count(&self) -> u32 {
        self.run.state().active_branches
    }
}
