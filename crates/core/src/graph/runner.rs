//! The code of a graph's workflow: begins each task when its dependencies have ended, and collects the outcomes.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::failure::Failure;
use crate::graph::code::{GraphCode, Source, TaskArguments, TaskBody};
use crate::graph::context::ContextValues;
use crate::graph::context::merger::ContextMerger;
use crate::graph::context::shared::GraphContext;
use crate::graph::map::run_items;
use crate::graph::place::TaskPlace;
use crate::graph::progress::GraphProgress;
use crate::graph::shape::GraphShape;
use crate::graph::shape::condition::{ValueCondition, ValueSource};
use crate::graph::task::{TaskEnd, TaskValue, fail_task, run_child_task, run_task};
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::workflow::branch::BranchGroup;

/// A task that has begun. Resolves to the task's index, its end, and its arguments in case it is repeated.
type RunningTask = Pin<Box<dyn Future<Output = (usize, TaskEnd, Option<TaskArguments>)> + Send>>;

/// Tasks that run again, because their recorded failures are from before a resume: the next place and the arguments.
type RepeatedTasks = HashMap<usize, (TaskPlace, TaskArguments)>;

/// Runs a graph to its output.
///
/// Each task is a branch of the execution, with a step at a path of its own, which depends on the task's name only.
pub(super) async fn run_graph(
    run: Arc<Run>,
    code: Arc<GraphCode>,
    input: Payload,
) -> Result<Payload, Failure> {
    let group = BranchGroup::new(&run);
    let initial = if code.has_context_input { fields_of_input(&input)? } else { ContextValues::new() };
    let mut context = code.merge.as_ref().map(|merge| ContextMerger::new(&code.shape, merge, initial));
    let mut values = Values::new(&code, input);
    // the failures of tasks whose rules read a key of the context that cannot be merged
    let mut unreadable: HashMap<usize, Failure> = HashMap::new();
    let mut skipped = Vec::new();
    let value_holds = |reader: &str, condition: &ValueCondition| {
        condition_holds(&code.shape, &values, context.as_mut(), &mut unreadable, reader, condition)
    };
    let mut progress =
        GraphProgress::new(&code.shape, code.max_concurrency, value_holds, |task| skipped.push(task));
    let mut failures: Vec<(usize, Failure)> = Vec::new();
    let mut running: FuturesUnordered<RunningTask> = FuturesUnordered::new();
    let mut repeated = RepeatedTasks::new();
    loop {
        let is_replaying = run.is_replaying();
        let is_recorded = |task: usize, repeated: &RepeatedTasks| {
            // a mapped task has no record of its own, and its items may be recorded
            let is_mapped = matches!(code.tasks[task].body, TaskBody::Map(..));
            let place = || repeated.get(&task).map_or_else(|| code.shape.place(task), |(place, _)| *place);
            is_replaying && (is_mapped || run.has_recorded(&place().path()))
        };
        for task in skipped.drain(..) {
            values.take_arguments(&code, task);
        }
        while let Some(task) = progress.begin_next(|task| is_recorded(task, &repeated)) {
            group.begin();
            let (place, arguments) = match repeated.remove(&task) {
                Some((place, arguments)) => (place, Ok(arguments)),
                None => {
                    let payloads = values.take_arguments(&code, task);
                    let reads_context = code.tasks[task].arguments.contains(&Source::Context);
                    let reader = context.as_mut().filter(|_| reads_context);
                    let read = match unreadable.remove(&task) {
                        Some(failure) => Err(failure),
                        None => reader.map(|context| context.read(task)).transpose(),
                    };
                    let arguments = read.map(|context| TaskArguments { payloads, context });
                    (code.shape.place(task), arguments)
                }
            };
            running.push(begin_task(&run, &code, task, place, arguments));
        }
        let Some((task, end, arguments)) = running.next().await else { break };
        group.end();
        let outcome = match end {
            TaskEnd::Ended(outcome) => outcome,
            TaskEnd::Repeated(place, _) => {
                repeated.extend(arguments.map(|arguments| (task, (place, arguments))));
                progress.repeat(task);
                continue;
            }
        };
        let has_succeeded = outcome.is_ok();
        match outcome {
            Ok(ended) => {
                values.set(task, ended.value);
                if let (Some(context), Some(changes)) = (&mut context, ended.changes) {
                    context.apply(task, *changes);
                }
            }
            Err(failure) => failures.push((task, failure)),
        }
        let value_holds = |reader: &str, condition: &ValueCondition| {
            condition_holds(&code.shape, &values, context.as_mut(), &mut unreadable, reader, condition)
        };
        progress.end(&code.shape, task, has_succeeded, value_holds, |task| skipped.push(task));
    }
    drop(group);
    let unhandled = failures
        .into_iter()
        .filter(|(task, _)| !code.tasks[*task].may_fail)
        .min_by_key(|(task, _)| code.shape.position(*task));
    match unhandled {
        Some((task, failure)) => Err(name_task(&code, task, failure)),
        None => {
            let reader = context.as_mut().filter(|_| code.outputs.contains(&Source::Context));
            let context = reader.map(ContextMerger::read_final).transpose()?;
            (code.output)(&TaskArguments { payloads: values.take_outputs(&code), context })
        }
    }
}

/// Returns whether a condition of the rule of the task `reader` holds. If the value cannot be read, the result is `None`,
/// and the failure is added to `unreadable`.
fn condition_holds(
    shape: &GraphShape,
    values: &Values,
    context: Option<&mut ContextMerger<'_>>,
    unreadable: &mut HashMap<usize, Failure>,
    reader: &str,
    condition: &ValueCondition,
) -> Option<bool> {
    match &condition.source {
        ValueSource::Task(task) => {
            let value = shape.index_of(task).and_then(|task| values.of_tasks[task].as_ref());
            Some(value.is_some_and(|value| condition.holds(value)))
        }
        ValueSource::Context(key) => {
            let reader = shape.index_of(reader)?;
            match context?.read_key(reader, key) {
                Ok(value) => Some(value.is_some_and(|value| condition.holds(&value))),
                Err(failure) => {
                    unreadable.insert(reader, failure);
                    None
                }
            }
        }
    }
}

fn begin_task(
    run: &Arc<Run>,
    code: &Arc<GraphCode>,
    task: usize,
    place: TaskPlace,
    arguments: Result<TaskArguments, Failure>,
) -> RunningTask {
    let (run, code) = (run.clone(), code.clone());
    Box::pin(async move {
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(failure) => return (task, fail_task(&run, &code, task, place, failure).await, None),
        };
        let end = match &code.tasks[task].body {
            TaskBody::Once(body) => run_task(&run, &code, task, place, || body(&arguments)).await,
            TaskBody::Child(child) => run_child_task(&run, &code, task, place, child, &arguments).await,
            TaskBody::Map(body, max_items) => {
                let outcome = match body(arguments) {
                    // in a box of its own, because the futures of all tasks are as large as the largest one
                    Ok(items) => Box::pin(run_items(&run, &code, task, items, *max_items)).await,
                    Err(failure) => Err(failure),
                };
                // items are repeated one by one, so the task itself never is
                let outcome = outcome.map(|value| TaskValue { value, changes: None });
                return (task, TaskEnd::Ended(outcome), None);
            }
        };
        (task, end, Some(arguments))
    })
}

/// Returns the fields of the input, which are the first values of the context.
fn fields_of_input(input: &Payload) -> Result<ContextValues, Failure> {
    let fields = input.decode::<GraphContext>();
    fields
        .map(GraphContext::into_values)
        .map_err(|error| error.with_value(|| "the input of the graph as its context".to_owned()).to_failure())
}

/// Returns the failure of a graph whose task has failed.
fn name_task(code: &GraphCode, task: usize, failure: Failure) -> Failure {
    let (graph, task) = (code.shape.name(), &code.shape.tasks()[task].name);
    Failure { message: format!("task {task:?} of graph {graph:?} failed: {}", failure.message), ..failure }
}

/// The values of the input and of ended tasks, each for as long as a task or the output still needs it.
struct Values {
    input: Payload,
    of_tasks: Vec<Option<Payload>>,
    /// Number of uses of each task's value that are still to come.
    uses: Vec<usize>,
}

impl Values {
    fn new(code: &GraphCode, input: Payload) -> Self {
        let mut uses = vec![0; code.tasks.len()];
        let arguments = code.tasks.iter().flat_map(|task| task.arguments.iter().chain(&task.conditions));
        for source in arguments.chain(&code.outputs) {
            if let Source::Task(task) = source {
                uses[*task] += 1;
            }
        }
        Self { input, of_tasks: vec![None; code.tasks.len()], uses }
    }

    fn set(&mut self, task: usize, value: Payload) {
        if self.uses[task] > 0 {
            self.of_tasks[task] = Some(value);
        }
    }

    fn take(&mut self, source: Source) -> Option<Payload> {
        match source {
            Source::Input => Some(self.input.clone()),
            // the merger has the context
            Source::Context => None,
            Source::Task(task) => {
                self.uses[task] -= 1;
                if self.uses[task] == 0 { self.of_tasks[task].take() } else { self.of_tasks[task].clone() }
            }
        }
    }

    /// Takes the arguments of a task that begins or is skipped, and releases the values that its rule has used.
    fn take_arguments(&mut self, code: &GraphCode, task: usize) -> Vec<Option<Payload>> {
        for &source in &code.tasks[task].conditions {
            self.take(source);
        }
        self.take_all(&code.tasks[task].arguments)
    }

    fn take_outputs(&mut self, code: &GraphCode) -> Vec<Option<Payload>> {
        self.take_all(&code.outputs)
    }

    fn take_all(&mut self, sources: &[Source]) -> Vec<Option<Payload>> {
        let sources = sources.iter().filter(|source| **source != Source::Context);
        sources.map(|&source| self.take(source)).collect()
    }
}
