//! The run of one task as a step or as a child, and its repetition after a resume.

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

/// Runs a task that is a workflow, as a child of the execution. If the child had failed before a resume, starts another
/// child.
pub(super) async fn run_child_task<D: Iterator<Item = TaskPlace>>(
    run: &Arc<Run>,
    mut place: TaskPlace,
    task: &ChildTask,
    arguments: &[Option<Payload>],
    dependents: impl Fn() -> D + Send,
) -> Result<Payload, Failure> {
    let input = (task.input)(arguments)?;
    let fingerprint = input.fingerprint();
    loop {
        let is_repeated = is_repeated(run, place, dependents());
        let call = begin_child_call(run, place.path(), &task.definition, fingerprint);
        let (definition, input) = (task.definition.clone(), input.clone());
        let child = NewChild { definition, input, fingerprint, options: None, is_detached: false };
        let outcome = run_child(call, child).await;
        if outcome.is_ok() || !is_repeated {
            return outcome;
        }
        place = place.repeated();
    }
}
