//! The run of one task as a step or as a child, and whether it is repeated after a resume.

use std::sync::Arc;

use crate::failure::Failure;
use crate::graph::code::{ChildTask, GraphCode, TaskFuture};
use crate::graph::place::{TaskPlace, begin_task_call, is_repeated};
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::workflow::child::{NewChild, begin_child_call, run_child};
use crate::workflow::step::run_step;

/// The end of a task's step or child.
pub(super) enum TaskEnd {
    /// The task has ended.
    Ended(Result<Payload, Failure>),
    /// The recorded outcome is this failure from before a resume: the task runs again at the place, when the limits allow.
    Repeated(TaskPlace, Failure),
}

/// Runs a task, or an item of a mapped one, as a step.
pub(super) async fn run_task(
    run: &Arc<Run>,
    code: &GraphCode,
    task: usize,
    place: TaskPlace,
    begin_attempt: impl FnMut() -> TaskFuture + Send,
) -> TaskEnd {
    let (name, options) = (&code.shape.tasks()[task].name, &code.tasks[task].options);
    let is_repeated = is_repeated(run, place, code.shape.dependent_places(task));
    match begin_task_call(run, place, name, options.as_deref()) {
        Ok(call) => {
            let outcome = run_step(call, begin_attempt, options.clone()).await;
            end_task(run, code, task, place, outcome, is_repeated).await
        }
        Err(failure) => end_task(run, code, task, place, Err(failure), false).await,
    }
}

/// Runs a task that is a workflow, as a child of the execution. A task that is repeated starts another child.
pub(super) async fn run_child_task(
    run: &Arc<Run>,
    code: &GraphCode,
    task: usize,
    place: TaskPlace,
    child: &ChildTask,
    arguments: &[Option<Payload>],
) -> TaskEnd {
    let input = match (child.input)(arguments) {
        Ok(input) => input,
        Err(failure) => return end_task(run, code, task, place, Err(failure), false).await,
    };
    let is_repeated = is_repeated(run, place, code.shape.dependent_places(task));
    let (definition, fingerprint) = (child.definition.clone(), input.fingerprint());
    let call = begin_child_call(run, place.path(), &definition, fingerprint);
    let child = NewChild { definition, input, fingerprint, options: None, is_detached: false };
    let outcome = run_child(call, child).await;
    end_task(run, code, task, place, outcome, is_repeated).await
}

/// Returns the end of a task with this outcome, after the task's callback has run.
async fn end_task(
    run: &Arc<Run>,
    code: &GraphCode,
    task: usize,
    place: TaskPlace,
    outcome: Result<Payload, Failure>,
    is_repeated: bool,
) -> TaskEnd {
    let end = match outcome {
        Err(failure) if is_repeated => TaskEnd::Repeated(place.repeated(), failure),
        outcome => TaskEnd::Ended(outcome),
    };
    code.tasks[task].callbacks.run(run, place, &code.shape.tasks()[task].name, &end).await;
    end
}
