//! [`GuestStep`]: a step whose body a guest runs.

use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::run::call::Call;
use crate::workflow::messaging::StepScope;
use crate::workflow::retry::StepOptions;
pub use crate::workflow::step_execution::StepAction;
use crate::workflow::step_execution::StepExecution;

/// A step whose body the guest runs, when [`GuestStep::poll`] asks for it. A step that is dropped before it has
/// finished is recorded as abandoned.
pub struct GuestStep(StepExecution);

impl GuestStep {
    pub(crate) fn new(begun_call: Result<Call, Failure>, options: Option<Box<StepOptions>>) -> Self {
        Self(StepExecution::new(begun_call, options))
    }

    /// Polls the step: returns the guest's next action, or `Pending` while the guest has to wait.
    pub fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<StepAction> {
        let polled = self.0.poll(cx);
        if let Poll::Ready(StepAction::Finished(_)) = polled {
            self.0.free_call();
        }
        polled
    }

    /// Reports the body's result. A result that is reported before the body was asked for is ignored.
    pub fn finish(&mut self, outcome: Result<Payload, Failure>) {
        self.0.finish(outcome);
    }

    /// Returns the attempt whose body runs, which may write to streams; `None` while no body runs.
    pub fn scope(&self) -> Option<StepScope> {
        self.0.scope()
    }

    /// Returns the number of the current attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// Returns the pause before the next attempt, after the body's failure was [reported](GuestStep::finish); `None`
    /// if no further attempt is allowed.
    pub fn retry_pause(&self) -> Option<Duration> {
        self.0.retry_pause()
    }
}
