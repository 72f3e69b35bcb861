//! [`GraphCode`]: a graph's shape with the code of its tasks, types erased.

use std::pin::Pin;

use crate::failure::Failure;
use crate::graph::shape::GraphShape;
use crate::payload::Payload;
use crate::workflow::retry::StepOptions;

/// The future of one attempt of a task.
pub(super) type TaskFuture = Pin<Box<dyn Future<Output = Result<Payload, Failure>> + Send>>;

/// The body of a task: takes the values of the task's arguments, in their order.
pub(super) type TaskBody = dyn Fn(&[Option<Payload>]) -> TaskFuture + Send + Sync;

/// A graph's shape with the code of its tasks.
pub(super) struct GraphCode {
    pub(super) shape: GraphShape,
    /// The code of each task of the shape.
    pub(super) tasks: Vec<TaskCode>,
    /// The maximum number of tasks that run at a time.
    pub(super) max_concurrency: usize,
    /// The values from which the output is made.
    pub(super) outputs: Vec<Source>,
    pub(super) output: Box<OutputBody>,
}

/// Makes the output of a graph of the values of its sources.
pub(super) type OutputBody = dyn Fn(&[Option<Payload>]) -> Result<Payload, Failure> + Send + Sync;

/// The code of a task.
pub(super) struct TaskCode {
    pub(super) arguments: Vec<Source>,
    pub(super) body: Box<TaskBody>,
    /// The options of the task's step; `None` for the defaults.
    pub(super) options: Option<Box<StepOptions>>,
    /// Whether the graph may complete although the task has failed.
    pub(super) may_fail: bool,
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The input of the graph.
    Input,
    /// The value of the task with this index.
    Task(usize),
}
