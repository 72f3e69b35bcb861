//! The run of one task as a step or as a child, and whether it is repeated after a resume.

use std::sync::Arc;

use crate::failure::{Failure, UNREADABLE};
use crate::graph::code::{ChildTask, GraphCode, TaskArguments, TaskFuture};
use crate::graph::context::changes::ContextChanges;
use crate::graph::place::{TaskPlace, begin_task_call, is_repeated};
use crate::payload::Payload;
use crate::runtime::run::{Interrupt, Run};
use crate::workflow::child::{ChildKind, NewChild, begin_child_call, run_child};
use crate::workflow::step::run_step;

/// The end of a task's step or child.
pub(super) enum TaskEnd {
    /// The task has ended.
    Ended(Result<TaskValue, Failure>),
    /// The recorded outcome is this failure from before a resume: the task runs again at the place, when the limits allow.
    Repeated(TaskPlace, Failure),
}

/// The value of a task that has succeeded.
pub(super) struct TaskValue {
    pub(super) value: Payload,
    /// The changes of the context, if the task may change it.
    pub(super) changes: Option<Box<ContextChanges>>,
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
    arguments: &TaskArguments,
) -> TaskEnd {
    let input = match (child.input)(arguments) {
        Ok(input) => input,
        Err(failure) => return end_task(run, code, task, place, Err(failure), false).await,
    };
    let is_repeated = is_repeated(run, place, code.shape.dependent_places(task));
    let (definition, fingerprint) = (child.definition.clone(), input.fingerprint());
    let call = begin_child_call(run, place.path(), &definition, fingerprint);
    let child = NewChild { definition, input, fingerprint, options: None, kind: ChildKind::Awaited };
    let outcome = run_child(call, child).await;
    end_task(run, code, task, place, outcome, is_repeated).await
}

/// Returns the end of a task that cannot begin, after the task's callback has run.
pub(super) async fn fail_task(
    run: &Arc<Run>,
    code: &GraphCode,
    task: usize,
    place: TaskPlace,
    failure: Failure,
) -> TaskEnd {
    end_task(run, code, task, place, Err(failure), false).await
}

/// Returns the value of a task by its recorded value. Parks the execution if the recorded value should have changes of
/// the context and has none.
async fn read_value(run: &Run, code: &GraphCode, task: usize, recorded: Payload) -> TaskValue {
    if !code.tasks[task].changes_context {
        return TaskValue { value: recorded, changes: None };
    }
    match ContextChanges::decode(&recorded) {
        Ok(changes) => TaskValue { value: changes.value.clone(), changes: Some(Box::new(changes)) },
        Err(error) => {
            let error = error.with_value(|| "the value with the changes of the context".to_owned());
            let (graph, name) = (code.shape.name(), &code.shape.tasks()[task].name);
            let failure =
                Failure::with_kind(UNREADABLE, format!("workflow {graph:?}, task {name:?}: {error}"));
            run.interrupt(Interrupt::Park(failure.permanent().into()));
            std::future::pending().await
        }
    }
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
        Ok(recorded) => TaskEnd::Ended(Ok(read_value(run, code, task, recorded).await)),
        Err(failure) if is_repeated => TaskEnd::Repeated(place.repeated(), failure),
        Err(failure) => TaskEnd::Ended(Err(failure)),
    };
    code.tasks[task].callbacks.run(run, place, &code.shape.tasks()[task].name, &end).await;
    end
}
