//! [`RunControl`]: how code outside of a run queries and controls the run.

use std::sync::Arc;
use std::task::Waker;

use crate::failure::{Failure, UNREADABLE};
use crate::key::Key;
use crate::runtime::run::Stopped;
use crate::runtime::run::quiescence::Waits;
use crate::runtime::run::{InThread, Interrupt, Run};

/// The control of one run of an execution. Once the run is closed, no call is delivered any more.
#[derive(Clone)]
pub struct Gate(pub(super) Arc<Run>);

impl Gate {
    /// Registers a waker for the moment when the code has to unwind. Returns false if it has to already.
    pub fn on_stop(&self, waker: &Waker) -> bool {
        self.0.on_stop(waker)
    }

    /// Removes a waker that [`RunControl::add_stop_waker`] has registered.
    pub fn off_stop(&self, waker: &Waker) {
        self.0.off_stop(waker);
    }

    /// Why the code has to unwind; `None` while it need not.
    pub fn stopped(&self) -> Option<Stopped> {
        self.0.state().stopped
    }

    /// Whether a body that was permitted to begin may still begin. To be called right before the body, by the thread that
    /// runs it: since the permission, the thread may have waited for its language's runtime.
    pub fn lets_begin(&self) -> bool {
        self.0.lets_begin()
    }

    /// Requeues the execution at the next poll of its task: the worker that claims it continues it from its record. From
    /// here on, nothing that the code does is recorded.
    pub fn hand_back(&self) {
        if self.0.is_open() {
            self.0.interrupt(Interrupt::HandBack);
        }
    }

    /// Defers the execution, because its code has asked the program to end. Nothing more is recorded. The execution is
    /// requeued when the engine shuts down, or else after a back-off that begins with 1 s and grows each time. Code that does
    /// this every time therefore keeps no worker busy, and does not restart in a program that is about to end.
    pub fn put_off(&self) {
        self.0.interrupt(Interrupt::PutOff);
    }

    /// The execution's key.
    pub fn key(&self) -> Key {
        self.0.key
    }

    /// The execution's workflow_id.
    pub fn workflow_id(&self) -> String {
        self.0.key.workflow_id(self.0.given_id.as_deref())
    }

    /// Adds `by` to the number of cancelled calls whose branches have not continued yet. Nothing is delivered while there
    /// are any.
    pub fn add_cancelled(&self, by: i32) {
        let minds_rest = {
            let mut state = self.0.state();
            state.cancelled = state.cancelled.saturating_add_signed(by);
            state.cancelled == 0 && state.minds_rest()
        };
        if minds_rest {
            self.0.poke();
        }
    }

    /// The name of the execution's workflow.
    pub fn workflow(&self) -> Arc<str> {
        self.0.definition.name.clone()
    }

    /// Declares that the code holds a thread. While such code waits for a child, the execution is suspended at once, unless
    /// the thread hosts that child and the child begins here.
    pub fn set_in_thread(&self, is_hosting: bool) {
        self.0.state().thread = Some(if is_hosting { InThread::Hosting } else { InThread::Idle });
    }

    /// An id that distinguishes the runs in this process, including several runs of one execution.
    pub fn run_id(&self) -> u64 {
        Arc::as_ptr(&self.0) as u64
    }

    /// Whether recording has stopped, or is about to: the code has to unwind now, or soon.
    pub fn is_closing(&self) -> bool {
        let state = self.0.state();
        state.is_closed || state.interrupt.is_some()
    }

    /// Parks the execution because a recorded value cannot be read.
    pub fn park(&self, reason: &str) {
        let text = format!("workflow {:?}: {reason}", &*self.0.definition.name);
        let failure = Failure::with_kind(UNREADABLE, text).permanent();
        self.0.interrupt(Interrupt::Park(failure.into()));
    }

    /// Reports that a branch's code runs, until it blocks.
    pub fn code_runs(&self) {
        self.0.code_runs();
    }

    /// Reports that a branch's code has blocked, or has ended. Returns true if the caller must from now on poll
    /// [`RunControl::activity`] on every turn of its loop, and report when all branches are quiescent.
    pub fn code_waits(&self) -> bool {
        self.0.code_waits()
    }

    /// A number that changes with every activity of the branches; `None` when polling may stop.
    pub fn activity(&self) -> Option<u32> {
        self.0.activity()
    }

    /// Whether the argument of [`RunControl::set_quiescent`] matters for branches that are blocked now.
    pub fn minds_waits(&self) -> bool {
        self.0.minds_waits()
    }

    /// Reports that no branch's code runs, and that none can run before a delivery or an external event. Polling may stop.
    pub fn set_quiet(&self, waits: Waits) {
        self.0.set_quiet(waits);
    }

    /// The number of branches that have not ended.
    pub fn branches(&self) -> u32 {
        self.0.state().leaves
    }
}
