//! Callbacks: functions that run after the end of a task, each as a step of its own.

use std::sync::Arc;

use crate::failure::Failure;
use crate::graph::code::TaskFuture;
use crate::graph::place::{TaskPlace, begin_task_call};
use crate::graph::task::TaskEnd;
use crate::name::Name;
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::workflow::step::run_step;

/// The callbacks of a task.
#[derive(Default)]
pub(super) struct Callbacks {
    pub(super) on_success: Option<Box<SuccessBody>>,
    pub(super) on_failure: Option<Box<FailureBody>>,
}

/// Begins a callback, with the value of the task.
pub(super) type SuccessBody = dyn Fn(&Payload) -> TaskFuture + Send + Sync;

/// Begins a callback, with the failure of the task.
pub(super) type FailureBody = dyn Fn(&Failure) -> TaskFuture + Send + Sync;

impl Callbacks {
    /// Runs the callback for the end of a task, or of an item of a mapped one. A failure of the callback is recorded, and
    /// changes nothing else. If the task is repeated, its earlier failure has run the callback already: then only the
    /// record is read.
    pub(super) async fn run(&self, run: &Arc<Run>, place: TaskPlace, task: &Name, end: &TaskEnd) {
        let (name, begin): (&str, &(dyn Fn() -> TaskFuture + Send + Sync)) = match end {
            TaskEnd::Ended(Ok(ended)) => match &self.on_success {
                Some(body) => ("on_success", &|| body(&ended.value)),
                None => return,
            },
            TaskEnd::Ended(Err(failure)) | TaskEnd::Repeated(_, failure) => match &self.on_failure {
                Some(body) => ("on_failure", &|| body(failure)),
                None => return,
            },
        };
        let place = place.callback(matches!(end, TaskEnd::Ended(Ok(_))));
        if matches!(end, TaskEnd::Repeated(..)) && !run.has_recorded(&place.path()) {
            return;
        }
        if let Ok(call) = begin_task_call(run, place, &format!("{task}.{name}").into(), None) {
            let _ = run_step(call, begin, None).await;
        }
    }
}
