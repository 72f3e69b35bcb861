//! `bench rate`: how evenly what a rate spaces begins.

use std::sync::Arc;
use std::time::Duration;

use stepfast::queue::Queue;
use stepfast::queue::rate::Rate;
use stepfast::{Engine, Error};

use crate::measure::Samples;
use crate::queue::{Ran, Runners, workflow};
use crate::report::{Figure, Row};
use crate::target::Target;

/// The target: so much off its interval, in percent.
const OFF: f64 = 5.0;
/// The queue.
const NAME: &str = "bench rated";

/// One combination of parameters.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// How many begin in a second, evenly.
    pub per_second: u32,
    /// Worker processes beside this one; 0 if this one works itself.
    pub workers: usize,
    /// Workflows in all.
    pub iterations: usize,
}

/// Puts workflows into a queue that is spaced evenly; the times from the beginning of each to that of the next.
pub async fn run(target: &Target, parameters: Parameters) -> Result<(Row, Vec<Figure>), Error> {
    let Parameters { per_second, workers, iterations } = parameters;
    let ran = Arc::new(Ran::default());
    let workflow = workflow(&ran);
    let queue = Queue::new(NAME).rate(Rate::new(per_second, Duration::from_secs(1)).evenly());
    let mut builder = Engine::builder(target.store().await?).register(&workflow).queue(queue);
    if workers > 0 {
        // this process puts in, and does not run
        builder = builder.serve(["bench none"]);
    }
    let engine = builder.open().await?;
    let runners = match workers {
        0 => None,
        workers => Some(Runners::start(&target.url, workers).await?),
    };
    let handles = engine.start_many(&workflow, std::iter::repeat_n(0, iterations)).queue(NAME).await?;
    let mut begun = Vec::with_capacity(iterations);
    for handle in handles {
        begun.push(handle.result().await?);
    }
    begun.sort_unstable();
    let mut between = Samples::default();
    for pair in begun.windows(2) {
        between.push((pair[1] - pair[0]) as f64 / 1_000.0);
    }
    engine.shutdown(Duration::from_secs(10)).await?;
    if let Some(runners) = runners {
        runners.end().await?;
    }
    let interval = 1_000.0 / f64::from(per_second);
    let name = format!("every {interval} ms, {workers} workers");
    let row = Row { queues: Some(1), workers: Some(workers), ..between.row(&name) };
    let mean = row.seconds * 1_000.0 / between.len().max(1) as f64;
    let off = |ms: f64| (ms / interval - 1.0).abs() * 100.0;
    let figures = vec![
        Figure::new(format!("{name}: the mean is off"), off(mean), "%").at_most(OFF),
        Figure::new(format!("{name}: the median is off"), off(between.median()), "%").at_most(OFF),
    ];
    Ok((row, figures))
}
