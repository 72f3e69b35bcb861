//! The run of one task as a step or as a child, and whether it is repeated after a resume.

use std::sync::Arc;

use crate::failure::Failure;
use crate::graph::code::{ChildTask, TaskFuture};
use crate::graph::place::{TaskPlace, begin_task_call, is_repeated};
use crate::name::Name;
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::workflow::child::{NewChild, begin_child_call, run_child};
use crate::workflow::retry::StepOptions;
use crate::workflow::step::run_step;

/// The end of a task's step or child.
pub(super) enum TaskEnd {
    /// The task has ended.
    Ended(Result<Payload, Failure>),
    /// The recorded outcome is this failure from before a resume: the task runs again at the place, when the limits allow.
    Repeated(TaskPlace, Failure),
}

/// Runs a task, or an item of a mapped one, as a step.
pub(super) async fn run_task<D: Iterator<Item = TaskPlace>>(
    run: &Arc<Run>,
    place: TaskPlace,
    name: &Name,
    options: Option<Box<StepOptions>>,
    dependents: impl Fn() -> D + Send,
    begin_attempt: impl FnMut() -> TaskFuture + Send,
) -> TaskEnd {
    let is_repeated = is_repeated(run, place, dependents());
    let call = match begin_task_call(run, place, name, options.as_deref()) {
        Ok(call) => call,
        Err(failure) => return TaskEnd::Ended(Err(failure)),
    };
    match run_step(call, begin_attempt, options).await {
        Err(failure) if is_repeated => TaskEnd::Repeated(place.repeated(), failure),
        outcome => TaskEnd::Ended(outcome),
    }
}

/// Runs a task that is a workflow, as a child of the execution. A task that is repeated starts another child.
pub(super) async fn run_child_task<D: Iterator<Item = TaskPlace>>(
    run: &Arc<Run>,
    place: TaskPlace,
    task: &ChildTask,
    arguments: &[Option<Payload>],
    dependents: impl Fn() -> D + Send,
) -> TaskEnd {
    let input = match (task.input)(arguments) {
        Ok(input) => input,
        Err(failure) => return TaskEnd::Ended(Err(failure)),
    };
    let is_repeated = is_repeated(run, place, dependents());
    let (definition, fingerprint) = (task.definition.clone(), input.fingerprint());
    let call = begin_child_call(run, place.path(), &definition, fingerprint);
    match run_child(call, NewChild { definition, input, fingerprint, options: None, is_detached: false })
        .await
    {
        Err(failure) if is_repeated => TaskEnd::Repeated(place.repeated(), failure),
        outcome => TaskEnd::Ended(outcome),
    }
}
