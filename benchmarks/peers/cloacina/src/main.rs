//! Measures Cloacina: graphs of one, five or three tasks, on SQLite or Postgres.
//!
//! Usage: `cloacina-bench SHAPE URL ITERATIONS CONCURRENCY`. SHAPE is `simple`, `parallel` or `pipeline`. URL is
//! `sqlite://PATH`, for a file that does not exist, or the URL of a Postgres server, whose role must be allowed to create
//! databases. The program prints one line of JSON for the settings, and one for the result.

mod shapes;
mod store;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cloacina::Context;
use cloacina::executor::WorkflowExecutor;
use cloacina::runner::{DefaultRunner, DefaultRunnerConfig};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::shapes::Shape;
use crate::store::{Settings, TestDatabase};

type BoxError = Box<dyn Error + Send + Sync>;

/// The interval at which the scheduler looks for ready tasks: the minimum that Cloacina accepts. The default is 100 ms.
const SCHEDULER_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The interval at which a caller reads the status of its workflow. Cloacina's own wait has 500 ms.
const STATUS_POLL_INTERVAL: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parameters = Parameters::parse(&arguments)
        .ok_or("usage: cloacina-bench simple|parallel|pipeline URL ITERATIONS CONCURRENCY")?;
    let database = TestDatabase::create(&parameters.url)?;
    let outcome = measure(&database.url, &parameters).await;
    database.drop()?;
    outcome
}

/// The arguments of the program.
struct Parameters {
    shape: Shape,
    url: String,
    /// The number of workflows in all.
    iterations: usize,
    /// The number of callers. Each of them runs one workflow at a time.
    concurrency: usize,
}

impl Parameters {
    fn parse(arguments: &[String]) -> Option<Self> {
        let [shape, url, iterations, concurrency] = arguments else { return None };
        let parse_positive = |text: &str| text.parse().ok().filter(|number: &usize| *number > 0);
        Some(Self {
            shape: Shape::parse(shape)?,
            url: url.clone(),
            iterations: parse_positive(iterations)?,
            concurrency: parse_positive(concurrency)?,
        })
    }
}

/// Measures the shape in the database at `url`, after a warm-up.
async fn measure(url: &str, parameters: &Parameters) -> Result<(), BoxError> {
    let &Parameters { shape, iterations, concurrency, .. } = parameters;
    // services for packages and schedules are off; recovery and its claims are on, as by default
    let config = DefaultRunnerConfig::builder()
        .scheduler_poll_interval(SCHEDULER_POLL_INTERVAL)
        .max_concurrent_tasks(concurrency)
        .enable_cron_scheduling(false)
        .enable_trigger_scheduling(false)
        .enable_registry_reconciler(false)
        .build()?;
    let settings = Settings {
        scheduler_poll_ms: SCHEDULER_POLL_INTERVAL.as_millis(),
        status_poll_ms: STATUS_POLL_INTERVAL.as_millis(),
        max_concurrent_tasks: concurrency,
        claiming: config.enable_claiming(),
        recovery: config.enable_recovery(),
    };
    let runner = DefaultRunner::with_config(url, config).await?;
    let (store, about) = store::describe(&runner, &settings).await?;
    println!("{about}");
    run_callers(&runner, shape, (iterations / 20).max(1), concurrency).await?;
    let Run { mut times_ms, failed, seconds } = run_callers(&runner, shape, iterations, concurrency).await?;
    times_ms.sort_by(f64::total_cmp);
    let quantile = |share: f64| {
        let last = times_ms.len().saturating_sub(1);
        times_ms.get((last as f64 * share).round() as usize).copied()
    };
    let per_second = times_ms.len() as f64 / seconds;
    let result = json!({
        "peer": "cloacina",
        "experiment": "graphs",
        "mode": shape.as_str(),
        "store": store,
        "completed": times_ms.len(),
        "failed": failed,
        "concurrency": concurrency,
        "seconds": seconds,
        "per_second": per_second,
        "tasks_per_second": per_second * shape.task_count() as f64,
        "p50_ms": quantile(0.5),
        "p99_ms": quantile(0.99),
    });
    println!("{result}");
    runner.shutdown().await?;
    Ok(())
}

/// The latencies of the workflows that completed, and the number of the others.
#[derive(Default)]
struct Run {
    times_ms: Vec<f64>,
    failed: usize,
    seconds: f64,
}

/// Runs `total` workflows, `concurrency` of them at a time.
async fn run_callers(
    runner: &DefaultRunner,
    shape: Shape,
    total: usize,
    concurrency: usize,
) -> Result<Run, BoxError> {
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let callers: Vec<_> = (0..concurrency)
        .map(|_| {
            let (runner, next) = (runner.clone(), next.clone());
            tokio::spawn(async move {
                let mut run = Run::default();
                while next.fetch_add(1, Ordering::Relaxed) < total {
                    let begun = Instant::now();
                    match run_workflow(&runner, shape).await {
                        Ok(()) => run.times_ms.push(begun.elapsed().as_secs_f64() * 1e3),
                        Err(error) => {
                            eprintln!("a workflow failed: {error}");
                            run.failed += 1;
                        }
                    }
                }
                run
            })
        })
        .collect();
    let mut all = Run::default();
    for caller in callers {
        let run = caller.await?;
        all.times_ms.extend(run.times_ms);
        all.failed += run.failed;
    }
    all.seconds = begun.elapsed().as_secs_f64();
    Ok(all)
}

/// Runs a workflow to its end. A workflow without the expected output is an error.
async fn run_workflow(runner: &DefaultRunner, shape: Shape) -> Result<(), BoxError> {
    let mut input = Context::new();
    input.insert("name", json!("world"))?;
    let execution = runner.execute_async(shape.as_str(), input).await?;
    while !execution.get_status().await?.is_terminal() {
        tokio::time::sleep(STATUS_POLL_INTERVAL).await;
    }
    let result = runner.get_execution_result(execution.execution_id).await?;
    let output = result.final_context.get(shape.output_key()).and_then(Value::as_str);
    if output == Some(shape.expected_output()) {
        return Ok(());
    }
    Err(format!("{:?}, output {output:?}, error {:?}", result.status, result.error_message).into())
}
