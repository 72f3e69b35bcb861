//! `bench rate`: the evenness of the starts of a queue whose rate spaces them.

use std::sync::Arc;
use std::time::Duration;

use stepfast::queue::Queue;
use stepfast::queue::rate::Rate;
use stepfast::{Engine, Error};

use crate::experiments::queue::{RunCounter, Runners, workflow};
use crate::measure::Samples;
use crate::report::{Figure, Row};
use crate::target::Target;

/// The target: the maximum deviation from the interval, in percent.
const MAX_DEVIATION_PERCENT: f64 = 5.0;
/// The name of the queue.
const QUEUE_NAME: &str = "bench rated";

/// The parameters of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct RateParameters {
    /// The rate of the queue: evenly spaced starts per second.
    pub per_second: u32,
    /// The number of worker processes. With 0, this process runs the workflows itself.
    pub workers: usize,
    /// The number of workflows in all.
    pub iterations: usize,
}

/// Enqueues workflows into a queue with an evenly spaced rate, and measures the times between the begin of one and the next.
pub async fn run(target: &Target, parameters: RateParameters) -> Result<(Row, Vec<Figure>), Error> {
    let RateParameters { per_second, workers, iterations } = parameters;
    let run_counter = Arc::new(RunCounter::default());
    let workflow = workflow(&run_counter);
    let queue = Queue::new(QUEUE_NAME).rate(Rate::new(per_second, Duration::from_secs(1)).evenly());
    let mut builder = Engine::builder(target.store().await?).register(&workflow).queue(queue);
    if workers > 0 {
        // this process enqueues workflows and does not run them
        builder = builder.serve_queues(["bench none"]);
    }
    let engine = builder.open().await?;
    let runners = match workers {
        0 => None,
        workers => Some(Runners::start(&target.url, workers).await?),
    };
    let handles = engine.start_many(&workflow, std::iter::repeat_n(0, iterations)).queue(QUEUE_NAME).await?;
    let mut begun = Vec::with_capacity(iterations);
    for handle in handles {
        begun.push(handle.result().await?);
    }
    begun.sort_unstable();
    let mut intervals = Samples::default();
    for pair in begun.windows(2) {
        intervals.push((pair[1] - pair[0]) as f64 / 1_000.0);
    }
    engine.shutdown(Duration::from_secs(10)).await?;
    if let Some(runners) = runners {
        runners.wait_for_end().await?;
    }
    let interval = 1_000.0 / f64::from(per_second);
    let name = format!("every {interval} ms, {workers} workers");
    let row = Row { queues: Some(1), workers: Some(workers), ..intervals.row(&name) };
    let mean = row.seconds * 1_000.0 / intervals.len().max(1) as f64;
    let deviation = |ms: f64| (ms / interval - 1.0).abs() * 100.0;
    let figures = vec![
        Figure::new(format!("{name}: the mean is off"), deviation(mean), "%").at_most(MAX_DEVIATION_PERCENT),
        Figure::new(format!("{name}: the median is off"), deviation(intervals.median()), "%")
            .at_most(MAX_DEVIATION_PERCENT),
    ];
    Ok((row, figures))
}
