//! The code of a graph's workflow: begins each task when its dependencies have ended, and collects the outcomes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::failure::Failure;
use crate::graph::code::{GraphCode, Source};
use crate::graph::progress::Progress;
use crate::graph::state::TaskState;
use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::workflow::branch::BranchGroup;
use crate::workflow::step::run_step;

/// A task that has begun. Resolves to the task's index and outcome.
type RunningTask = Pin<Box<dyn Future<Output = (usize, Result<Payload, Failure>)> + Send>>;

/// An event for which a graph waits.
enum Event {
    TaskEnded(usize, Result<Payload, Failure>),
    /// The recorded outcomes are delivered, so tasks without a record may begin.
    ReplayEnded,
    /// No task runs and none may begin.
    Finished,
}

/// Runs a graph to its output.
///
/// Each task is a branch of the execution, with a step at a path of its own, which depends on the task's name only. In a
/// replay the tasks with recorded outcomes begin first: the others would take their places if the graph has a limit.
pub(super) async fn run_graph(
    run: Arc<Run>,
    code: Arc<GraphCode>,
    input: Payload,
) -> Result<Payload, Failure> {
    let group = BranchGroup::new(&run);
    let mut progress = Progress::new(&code.shape);
    let mut values = Values::new(&code, input);
    let mut failures: Vec<(usize, Failure)> = Vec::new();
    let mut running: FuturesUnordered<RunningTask> = FuturesUnordered::new();
    let mut is_replaying = run.is_replaying();
    loop {
        while let Some(task) = if is_replaying {
            progress.begin_next_recorded(|task| run.has_recorded(&task_path(&code, task)))
        } else if running.len() < code.max_concurrency {
            progress.begin_next()
        } else {
            None
        } {
            group.begin();
            running.push(begin_task(&run, &code, task, values.take_arguments(&code, task)));
        }
        let event = poll_fn(|cx| match running.poll_next_unpin(cx) {
            Poll::Ready(Some((task, outcome))) => Poll::Ready(Event::TaskEnded(task, outcome)),
            _ if is_replaying && !run.is_replaying() => Poll::Ready(Event::ReplayEnded),
            Poll::Ready(None) if !progress.has_ready() => Poll::Ready(Event::Finished),
            _ => Poll::Pending,
        });
        match event.await {
            Event::TaskEnded(task, outcome) => {
                group.end();
                let state = match outcome {
                    Ok(value) => {
                        values.set(task, value);
                        TaskState::Succeeded
                    }
                    Err(failure) => {
                        failures.push((task, failure));
                        TaskState::Failed
                    }
                };
                progress.end(&code.shape, task, state, |task, state| {
                    if state == TaskState::Skipped {
                        values.skip_arguments(&code, task);
                    }
                });
            }
            Event::ReplayEnded => {
                is_replaying = false;
                progress.end_replay();
            }
            Event::Finished => break,
        }
    }
    drop(group);
    let unhandled = failures
        .into_iter()
        .filter(|(task, _)| !code.tasks[*task].may_fail)
        .min_by_key(|(task, _)| code.shape.position(*task));
    match unhandled {
        Some((task, failure)) => Err(name_task(&code, task, failure)),
        None => (code.output)(&values.take_outputs(&code)),
    }
}

fn task_path(code: &GraphCode, task: usize) -> Path {
    Path::root().child(code.shape.tasks()[task].number)
}

fn begin_task(
    run: &Arc<Run>,
    code: &Arc<GraphCode>,
    task: usize,
    arguments: Vec<Option<Payload>>,
) -> RunningTask {
    let shape = &code.shape.tasks()[task];
    let call = Call::begin(run, task_path(code, task), &shape.name, CallKind::Task, Some(shape.fingerprint));
    let code = code.clone();
    Box::pin(async move {
        let options = code.tasks[task].options.clone();
        let outcome = run_step(call, || (code.tasks[task].body)(&arguments), options).await;
        (task, outcome)
    })
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
        let arguments = code.tasks.iter().flat_map(|task| &task.arguments);
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
            Source::Task(task) => {
                self.uses[task] -= 1;
                if self.uses[task] == 0 { self.of_tasks[task].take() } else { self.of_tasks[task].clone() }
            }
        }
    }

    fn take_arguments(&mut self, code: &GraphCode, task: usize) -> Vec<Option<Payload>> {
        code.tasks[task].arguments.iter().map(|&source| self.take(source)).collect()
    }

    /// Releases the values that a skipped task would have used.
    fn skip_arguments(&mut self, code: &GraphCode, task: usize) {
        for &source in &code.tasks[task].arguments {
            self.take(source);
        }
    }

    fn take_outputs(&mut self, code: &GraphCode) -> Vec<Option<Payload>> {
        code.outputs.iter().map(|&source| self.take(source)).collect()
    }
}
