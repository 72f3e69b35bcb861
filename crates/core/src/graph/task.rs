//! The run of one task as a step.

use std::sync::Arc;

use crate::failure::Failure;
use crate::graph::code::TaskFuture;
use crate::graph::place::{TaskPlace, begin_task_call, is_repeated};
use crate::name::Name;
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::workflow::retry::StepOptions;
use crate::workflow::step::run_step;

/// The end of a task's step.
pub(super) enum StepEnd {
    /// The task has ended.
    Ended(Result<Payload, Failure>),
    /// The recorded outcome is a failure from before a resume. The task runs again at this place when the limits allow.
    Repeated(TaskPlace),
}

/// Runs a task, or an item of a mapped one, as a step.
pub(super) async fn run_task<D: Iterator<Item = TaskPlace>>(
    run: &Arc<Run>,
    place: TaskPlace,
    name: &Name,
    options: Option<Box<StepOptions>>,
    dependents: impl Fn() -> D + Send,
    begin_attempt: impl FnMut() -> TaskFuture + Send,
) -> StepEnd {
    let is_repeated = is_repeated(run, place, dependents());
    let call = match begin_task_call(run, place, name, options.as_deref()) {
        Ok(call) => call,
        Err(failure) => return StepEnd::Ended(Err(failure)),
    };
    match run_step(call, begin_attempt, options).await {
        Err(_) if is_repeated => StepEnd::Repeated(place.repeated()),
        outcome => StepEnd::Ended(outcome),
    }
}
