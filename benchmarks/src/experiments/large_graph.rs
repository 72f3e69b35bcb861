//! `bench large-graph`: the time per task of graphs with few and with many tasks.

use std::future::ready;
use std::time::Duration;

use stepfast::graph::{Graph, TaskRef};
use stepfast::{Engine, Error, Failure, Workflow};
use tokio::time::Instant;

use crate::measure::{Samples, median, ms_since, sort_ascending};
use crate::report::{Figure, Row};
use crate::target::Target;

/// The number of tasks of each layer.
const LAYER_WIDTH: usize = 100;
/// The number of tasks of the layer before on which a task depends.
const DEPENDENCIES: usize = 3;
/// The target: the maximum time until the first task of a graph may begin, in milliseconds.
const MAX_START_MS: f64 = 1_000.0;
/// The target: the maximum growth of the time per task from the smallest to the largest graph, in percent.
const MAX_GROWTH_PERCENT: f64 = 20.0;

/// The parameters of an experiment.
pub struct LargeGraphParameters {
    /// The numbers of tasks, from the smallest.
    pub tasks: Vec<usize>,
    /// The number of turns. Each turn runs every graph once, and smaller graphs as often as makes the same number of tasks.
    pub runs: usize,
}

impl LargeGraphParameters {
    /// Returns the parameters with the numbers of tasks in their order.
    pub fn new(tasks: &[usize], runs: usize) -> Self {
        Self { tasks: sort_ascending(tasks), runs }
    }

    /// The number of turns of both shapes, for the display of progress.
    pub fn total(&self) -> u64 {
        (Shape::ALL.len() * self.runs) as u64
    }
}

/// The shape of a large graph.
#[derive(Clone, Copy)]
enum Shape {
    /// Layers of tasks, each of which depends on tasks of the layer before.
    Layers,
    /// One task that is mapped over items.
    FanOut,
}

impl Shape {
    const ALL: [Self; 2] = [Self::Layers, Self::FanOut];

    fn as_str(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::FanOut => "fan-out",
        }
    }

    /// Returns a graph with this number of tasks, each of which returns a small number.
    fn graph(self, tasks: usize) -> Result<Workflow<(), u64>, Error> {
        let mut graph = Graph::<()>::new(format!("{} {tasks}", self.as_str()));
        match self {
            Self::Layers => {
                let mut layer: Vec<TaskRef<u64>> = Vec::new();
                for begin in (0..tasks).step_by(LAYER_WIDTH) {
                    let numbers = begin..tasks.min(begin + LAYER_WIDTH);
                    let declare = |number: usize| {
                        let before = layer.iter().cycle().skip(number).step_by(3).take(DEPENDENCIES);
                        let before: Vec<_> = before.cloned().collect();
                        graph.task(format!("task {number}")).run(before, async |values: Vec<u64>| {
                            Ok::<_, Failure>(values.iter().max().unwrap_or(&0) + 1)
                        })
                    };
                    layer = numbers.map(declare).collect();
                }
                let last = graph.task("last").run(layer, async |values: Vec<u64>| {
                    Ok::<_, Failure>(values.into_iter().max().unwrap_or(0))
                });
                graph.build(last)
            }
            Self::FanOut => {
                let items = graph.task("items").run((), move |()| ready(Ok::<_, Failure>(vec![1; tasks])));
                let each =
                    graph.task("each").map_over(&items).run((), async |item: u64, ()| Ok::<_, Failure>(item));
                let sum = graph
                    .task("sum")
                    .run(each, async |values: Vec<u64>| Ok::<_, Failure>(values.iter().sum::<u64>()));
                graph.build(sum)
            }
        }
    }

    /// Returns the output that every execution must have.
    fn expected_output(self, tasks: usize) -> u64 {
        match self {
            Self::Layers => tasks.div_ceil(LAYER_WIDTH) as u64,
            Self::FanOut => tasks as u64,
        }
    }
}

/// Runs graphs of both shapes with each number of tasks, one execution at a time. The numbers alternate, because a shared
/// machine has faster and slower minutes.
pub async fn run(
    target: &Target,
    parameters: &LargeGraphParameters,
    progress: &dyn Fn(u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    for (number, shape) in Shape::ALL.into_iter().enumerate() {
        let turns = |turns: usize| progress((number * parameters.runs + turns) as u64);
        let (measured, found) = run_shape(target, shape, parameters, &turns).await?;
        rows.extend(measured);
        figures.extend(found);
    }
    Ok((rows, figures))
}

async fn run_shape(
    target: &Target,
    shape: Shape,
    parameters: &LargeGraphParameters,
    progress: &dyn Fn(usize),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let sizes = &parameters.tasks;
    let (Some(&smallest), Some(&largest)) = (sizes.first(), sizes.last()) else {
        return Ok(Default::default());
    };
    let begun = Instant::now();
    let graphs = sizes.iter().map(|&tasks| shape.graph(tasks)).collect::<Result<Vec<_>, _>>()?;
    let validation_ms = ms_since(begun);
    let mut builder = Engine::builder(target.store().await?);
    for graph in &graphs {
        builder = builder.register(graph);
    }
    let engine = builder.open().await?;
    let mut samples: Vec<Samples> = sizes.iter().map(|_| Samples::default()).collect();
    let mut failed = vec![0; sizes.len()];
    let mut growths = Vec::new();
    // the first turn warms up
    for turn in 0..=parameters.runs {
        let mut per_task = Vec::new();
        for (number, (&tasks, graph)) in sizes.iter().zip(&graphs).enumerate() {
            let executions = (largest / tasks).max(1);
            let mut ms = 0.0;
            for _ in 0..executions {
                let begun = Instant::now();
                let output = engine.run(graph, ()).await;
                let elapsed = ms_since(begun);
                ms += elapsed;
                failed[number] += u64::from(output.ok() != Some(shape.expected_output(tasks)));
                if turn > 0 {
                    samples[number].push(elapsed);
                }
            }
            per_task.push(ms / (executions * tasks) as f64);
        }
        if let (1.., [first, .., last]) = (turn, &*per_task) {
            growths.push((last / first - 1.0) * 100.0);
        }
        progress(turn);
    }
    engine.shutdown(Duration::from_secs(10)).await?;
    let name = shape.as_str();
    let rows = sizes.iter().zip(samples).zip(failed).map(|((&tasks, samples), failed)| {
        let row = samples.row(&format!("{name} of {tasks}"));
        Row { failed, tasks_per_second: Some(row.per_second * tasks as f64), ..row }
    });
    let rows: Vec<Row> = rows.collect();
    let mut figures = vec![
        Figure::new(format!("{name}: validation of all graphs"), validation_ms, "ms").at_most(MAX_START_MS),
    ];
    for (&tasks, row) in sizes.iter().zip(&rows) {
        let rate = tasks as f64 * 1_000.0 / row.p50_ms.max(1e-9);
        figures.push(Figure::new(format!("{name} of {tasks}: tasks per second, median"), rate, "/s"));
    }
    if let Some(growth) = median(&growths) {
        let figure =
            format!("{name}: growth of the time per task from {smallest} to {largest} tasks, median");
        figures.push(Figure::new(figure, growth, "%").at_most(MAX_GROWTH_PERCENT));
    }
    Ok((rows, figures))
}
