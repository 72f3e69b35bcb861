//! [`Gate`]: what code outside of a run tells the run, and asks it.

use std::sync::Arc;
use std::task::Waker;

use crate::failure::{Failure, UNREADABLE};
use crate::key::Key;
use crate::runtime::run::Stopped;
use crate::runtime::run::quiescence::Waits;
use crate::runtime::run::{InThread, Interrupt, Run};

/// The gate of an execution that runs: once it is closed, no call is delivered any more.
#[derive(Clone)]
pub struct Gate(pub(super) Arc<Run>);

impl Gate {
    /// Wakes `waker` when the code has to unwind; false if it has to already.
    pub fn on_stop(&self, waker: &Waker) -> bool {
        self.0.on_stop(waker)
    }

    /// Takes back one [`Gate::on_stop`].
    pub fn off_stop(&self, waker: &Waker) {
        self.0.off_stop(waker);
    }

    /// Why the code has to unwind, once it has to.
    pub fn stopped(&self) -> Option<Stopped> {
        self.0.state().stopped
    }

    /// Returns true if a body that had leave to begin may still begin. To be read right before the body, by the thread
    /// that runs it: between the leave and the body the thread may have waited for its language.
    pub fn lets_begin(&self) -> bool {
        self.0.lets_begin()
    }

    /// Hands the execution back at the next turn of its task: whoever claims it goes on from the record. From
    /// here on nothing of what the code does is recorded.
    pub fn hand_back(&self) {
        if self.0.is_open() {
            self.0.interrupt(Interrupt::HandBack);
        }
    }

    /// The code wants the program to end. It records nothing more from here on, and the execution is handed back
    /// when the engine is; if that goes on, after a while: 1 s, longer every time. So code that does it each time
    /// keeps nobody busy, and does not begin anew in a program that is about to end.
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

    /// Adds to the number of calls that have been cancelled, and whose branches have not gone on yet: until then
    /// nothing is delivered.
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

    /// The name of its workflow.
    pub fn workflow(&self) -> Arc<str> {
        self.0.definition.name.clone()
    }

    /// Says that the code holds a thread. While it waits for a child, it is suspended at once: unless the thread
    /// hosts the child, and that begins here.
    pub fn set_in_thread(&self, is_hosting: bool) {
        self.0.state().thread = Some(if is_hosting { InThread::Hosting } else { InThread::Idle });
    }

    /// Tells the runs of this process apart: another run of the same execution has another one.
    pub fn run_id(&self) -> u64 {
        Arc::as_ptr(&self.0) as u64
    }

    /// True once nothing is recorded any more: the code has to unwind, or will have to in a moment.
    pub fn is_closing(&self) -> bool {
        let state = self.0.state();
        state.is_closed || state.interrupt.is_some()
    }

    /// Parks the execution: something that is recorded cannot be read.
    pub fn park(&self, reason: &str) {
        let text = format!("workflow {:?}: {reason}", &*self.0.definition.name);
        let failure = Failure::of_kind(UNREADABLE, text).permanent();
        self.0.interrupt(Interrupt::Park(failure.into()));
    }

    /// Code of a branch runs, until it waits for something.
    pub fn code_runs(&self) {
        self.0.code_runs();
    }

    /// Code of a branch waits now, or has ended. True if from now on somebody has to watch [`Gate::activity`], turn
    /// by turn, and say when all of them have come to rest.
    pub fn code_waits(&self) -> bool {
        self.0.code_waits()
    }

    /// Changes with everything that branches do; `None` when there is nothing more to watch.
    pub fn activity(&self) -> Option<u32> {
        self.0.activity()
    }

    /// True if it matters what [`Gate::set_quiet`] is told about branches that are at rest now.
    pub fn minds_waits(&self) -> bool {
        self.0.minds_waits()
    }

    /// Says that no branch of the execution runs any more, and none can before something is delivered, or comes
    /// from outside. There is nothing more to watch.
    pub fn set_quiet(&self, waits: Waits) {
        self.0.set_quiet(waits);
    }

    /// How many branches have not ended.
    pub fn branches(&self) -> u32 {
        self.0.state().leaves
    }
}
