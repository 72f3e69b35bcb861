//! The run of one task as a step, and its repetition after a resume.

use std::sync::Arc;

use crate::failure::Failure;
use crate::graph::code::TaskFuture;
use crate::graph::place::{TaskPlace, begin_task_call, is_repeated};
use crate::name::Name;
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::workflow::retry::StepOptions;
use crate::workflow::step::run_step;

/// Runs a task, or an item of a mapped one, as a step. If the recorded outcome is a failure from before a resume, runs the
/// task again.
pub(super) async fn run_task<D: Iterator<Item = TaskPlace>>(
    run: &Arc<Run>,
    mut place: TaskPlace,
    name: &Name,
    options: Option<Box<StepOptions>>,
    dependents: impl Fn() -> D + Send,
    mut begin_attempt: impl FnMut() -> TaskFuture + Send,
) -> Result<Payload, Failure> {
    loop {
        let is_repeated = is_repeated(run, place, dependents());
        let call = begin_task_call(run, place, name, options.as_deref())?;
        let outcome = run_step(call, &mut begin_attempt, options.clone()).await;
        if outcome.is_ok() || !is_repeated {
            return outcome;
        }
        place = place.repeated();
    }
}
