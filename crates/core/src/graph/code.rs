//! [`GraphCode`]: a graph's shape with the code of its tasks, types erased.

use std::pin::Pin;
use std::sync::Arc;

use crate::failure::Failure;
use crate::graph::callback::Callbacks;
use crate::graph::context::ContextValues;
use crate::graph::context::merge::Merge;
use crate::graph::shape::GraphShape;
use crate::payload::Payload;
use crate::runtime::definition::Definition;
use crate::workflow::retry::StepOptions;

/// The future of one attempt of a task.
pub(super) type TaskFuture = Pin<Box<dyn Future<Output = Result<Payload, Failure>> + Send>>;

/// The body of a task.
pub(super) enum TaskBody {
    /// Runs once for each attempt, with the values of the task's arguments in their order.
    Once(Box<OnceBody>),
    /// Runs once for each attempt of each item, with at most this number of items at a time.
    Map(Box<MapBody>, usize),
    /// Runs as a child of the execution.
    Child(ChildTask),
}

/// The arguments of a task, or the values of which the output is made.
pub(super) struct TaskArguments {
    /// The values of the sources except the context, in their order.
    pub(super) payloads: Vec<Option<Payload>>,
    /// The context, if it is among the sources.
    pub(super) context: Option<ContextValues>,
}

/// A task that is a workflow.
pub(super) struct ChildTask {
    pub(super) definition: Arc<Definition>,
    /// Makes the input of the workflow of the values of the task's arguments.
    pub(super) input: Box<OutputBody>,
}

/// Begins an attempt, with the values of the task's arguments.
pub(super) type OnceBody = dyn Fn(&TaskArguments) -> TaskFuture + Send + Sync;

/// Decodes the items, which are the first argument of the task.
pub(super) type MapBody = dyn Fn(TaskArguments) -> Result<MapItems, Failure> + Send + Sync;

/// The items over which a task is mapped.
pub(super) struct MapItems {
    pub(super) len: usize,
    /// Begins an attempt of the item with this index.
    pub(super) body: Box<dyn Fn(usize) -> TaskFuture + Send + Sync>,
}

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
    /// The merge policy of the context; `None` if no task, rule or output reads the context.
    pub(super) merge: Option<Merge>,
    /// Whether the fields of the input are the first values of the context.
    pub(super) has_context_input: bool,
}

/// Makes one value of several: the output of a graph, or the input of a task that is a workflow.
pub(super) type OutputBody = dyn Fn(&TaskArguments) -> Result<Payload, Failure> + Send + Sync;

/// The code of a task.
pub(super) struct TaskCode {
    pub(super) arguments: Vec<Source>,
    /// The sources of the values that conditions of the task's rule compare.
    pub(super) conditions: Vec<Source>,
    pub(super) body: TaskBody,
    /// Whether the recorded value contains changes of the context.
    pub(super) changes_context: bool,
    /// The options of the task's step; `None` for the defaults.
    pub(super) options: Option<Box<StepOptions>>,
    pub(super) callbacks: Callbacks,
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
    /// The context of the graph.
    Context,
}
