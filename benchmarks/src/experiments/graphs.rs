//! `bench simple`, `bench parallel` and `bench pipeline`: graphs of one, five and three tasks, at any concurrency.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepfast::graph::Graph;
use stepfast::{Engine, Error, Failure, Workflow};
use tokio::time::Instant;

use crate::bound::Probe;
use crate::experiments::writes::wait_for_all;
use crate::measure::Latencies;
use crate::python::Python;
use crate::report::Row;
use crate::target::Target;

/// The shape of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One task, which returns a greeting.
    Simple,
    /// A task that makes three batches of numbers, three tasks that multiply one batch each, and a task that combines
    /// them.
    Parallel,
    /// Three tasks in a row, which extract numbers, double and load them.
    Pipeline,
}

impl Shape {
    /// The shape's name in commands and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Shape::Simple => "simple",
            Shape::Parallel => "parallel",
            Shape::Pipeline => "pipeline",
        }
    }

    /// Returns the number of tasks.
    pub fn task_count(self) -> usize {
        match self {
            Shape::Simple => 1,
            Shape::Parallel => 5,
            Shape::Pipeline => 3,
        }
    }

    /// Returns the graph as a workflow. Its output is the greeting, or the sum of its numbers as text.
    pub fn graph(self) -> Result<Workflow<String, String>, Error> {
        let mut graph = Graph::<String>::new(self.as_str());
        let name = graph.input();
        let output = match self {
            Shape::Simple => graph
                .task("greet")
                .run(name, async |name: String| Ok::<_, Failure>(format!("Hello, {name}!"))),
            Shape::Parallel => {
                let batches = graph.task("setup").run(name, async |_: String| {
                    Ok::<_, Failure>([vec![1, 2, 3], vec![4, 5, 6], vec![7, 8, 9_i64]])
                });
                let parts: Vec<_> = (0..3)
                    .map(|n| {
                        let factor = n as i64 + 2;
                        graph.task(format!("multiply by {factor}")).run(
                            batches.clone(),
                            move |batches: [Vec<i64>; 3]| async move {
                                Ok::<_, Failure>(batches[n].iter().map(|x| x * factor).collect::<Vec<_>>())
                            },
                        )
                    })
                    .collect();
                graph.task("merge").run(parts, async |parts: Vec<Vec<i64>>| {
                    Ok::<_, Failure>(parts.iter().flatten().sum::<i64>().to_string())
                })
            }
            Shape::Pipeline => {
                let numbers = graph
                    .task("extract")
                    .run(name, async |_: String| Ok::<_, Failure>(vec![1, 2, 3, 4, 5_i64]));
                let doubled = graph.task("double").run(numbers, async |numbers: Vec<i64>| {
                    Ok::<_, Failure>(numbers.iter().map(|x| x * 2).collect::<Vec<_>>())
                });
                graph.task("load").run(doubled, async |doubled: Vec<i64>| {
                    Ok::<_, Failure>(doubled.iter().sum::<i64>().to_string())
                })
            }
        };
        graph.build(output)
    }
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct GraphParameters {
    /// The shape of the graph.
    pub shape: Shape,
    /// The number of executions in all.
    pub iterations: usize,
    /// The maximum number of executions that run at a time.
    pub concurrency: usize,
}

impl GraphParameters {
    /// Returns the output that every execution must have.
    fn expected_output(&self) -> &'static str {
        match self.shape {
            Shape::Simple => "Hello, world!",
            // (1 + 2 + 3) * 2 + (4 + 5 + 6) * 3 + (7 + 8 + 9) * 4
            Shape::Parallel => "153",
            Shape::Pipeline => "30",
        }
    }
}

/// Runs one combination on a new engine, after a warm-up. `progress` receives the number of executions that have ended.
///
/// An execution counts as failed if its output is not the expected one.
pub async fn run(target: &Target, parameters: GraphParameters, progress: &dyn Fn(u64)) -> Result<Row, Error> {
    let graph = parameters.shape.graph()?;
    let builder = Engine::builder(target.store().await?).register(&graph);
    let engine = builder.max_running(parameters.concurrency.max(10_000) + 1).open().await?;
    let warm_up = (parameters.iterations / 20).clamp(1, 2_000);
    run_callers(&engine, &graph, parameters, warm_up, &|_| {}).await;
    let store = engine.store().clone();
    let probe = Probe::start(target, Some(&store)).await?;
    let counted = store.counters().snapshot();
    let bytes = target.bytes_written().await;
    let (latencies, elapsed) =
        run_callers(&engine, &graph, parameters, parameters.iterations, progress).await;
    let observation = probe.stop(Some(&store)).await?;
    let mut row = Row {
        mode: Some(parameters.shape.as_str().to_owned()),
        concurrency: Some(parameters.concurrency),
        ..Row::default()
    };
    latencies.fill_with_elapsed(elapsed, &mut row);
    row.tasks_per_second = Some(row.per_second * parameters.shape.task_count() as f64);
    let counted = store.counters().snapshot().since(&counted);
    row.flushes = counted.flushes;
    row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
    row.bytes_written = target.bytes_written().await - bytes;
    engine.shutdown(Duration::from_secs(10)).await?;
    observation.fill(target, &mut row).await?;
    Ok(row)
}

/// Runs one combination in a Python process. Returns its row and its messages for the user.
pub async fn run_in_python(
    python: &Path,
    target: &Target,
    parameters: GraphParameters,
    progress: &dyn Fn(u64),
) -> anyhow::Result<(Row, String)> {
    let GraphParameters { shape, iterations, concurrency } = parameters;
    let input = json!({ "url": target.url, "shape": shape.as_str(), "concurrency": concurrency, "total": iterations });
    let mut python = Python::start(python, "graphs", input)?;
    let probe = Probe::start_for_process(target, python.id()).await?;
    let mut row: Row = python.resume_until("row", progress)?;
    let observation = probe.stop(None).await?;
    python.resume()?;
    let messages = python.finish()?;
    observation.fill(target, &mut row).await?;
    let row = Row {
        mode: Some(shape.as_str().to_owned()),
        concurrency: Some(concurrency),
        tasks_per_second: Some(row.per_second * shape.task_count() as f64),
        ..row
    };
    Ok((row, messages))
}

/// Returns the summary of a run, in the lines that the performance programs of Cloacina print, then tasks per second and
/// latencies.
pub fn summary(row: &Row, iterations: usize) -> String {
    let percent = row.completed as f64 * 100.0 / iterations.max(1) as f64;
    format!(
        "Performance test completed!\n\
         Configuration: {iterations} iterations, {} concurrency\n\
         Total time: {:.2}s\n\
         Workflows per second: {:.2}\n\
         Success rate: {}/{iterations} ({percent:.1}%)\n\
         Tasks per second: {:.2}\n\
         Latency: p50 {:.3} ms, p99 {:.3} ms\n",
        row.concurrency.unwrap_or_default(),
        row.seconds,
        row.per_second,
        row.completed,
        row.tasks_per_second.unwrap_or_default(),
        row.p50_ms,
        row.p99_ms,
    )
}

/// Runs `total` executions, `concurrency` of them at a time.
async fn run_callers(
    engine: &Engine,
    graph: &Workflow<String, String>,
    parameters: GraphParameters,
    total: usize,
    progress: &dyn Fn(u64),
) -> (Arc<Latencies>, Duration) {
    let latencies = Arc::new(Latencies::new(total));
    let begun = Instant::now();
    let callers: Vec<_> = (0..parameters.concurrency)
        .map(|_| {
            let (engine, graph, latencies) = (engine.clone(), graph.clone(), latencies.clone());
            tokio::spawn(async move {
                while let Some(n) = latencies.next() {
                    let begun = Instant::now();
                    let output = engine.run(&graph, "world".to_owned()).await;
                    let is_ok = output.is_ok_and(|output| output == parameters.expected_output());
                    latencies.record(n, begun, is_ok);
                }
            })
        })
        .collect();
    wait_for_all(callers, &latencies, progress).await;
    let elapsed = begun.elapsed();
    (latencies, elapsed)
}

#[cfg(test)]
mod tests {
    use stepfast::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn graphs_have_the_expected_outputs() {
        for shape in [Shape::Simple, Shape::Parallel, Shape::Pipeline] {
            let graph = shape.graph().unwrap();
            let engine = Engine::builder(Arc::new(MemoryStore::new())).register(&graph).open().await.unwrap();
            let parameters = GraphParameters { shape, iterations: 1, concurrency: 1 };
            let output = engine.run(&graph, "world".to_owned()).await.unwrap();
            assert_eq!(output, parameters.expected_output());
            engine.shutdown(Duration::from_secs(10)).await.unwrap();
        }
    }
}
