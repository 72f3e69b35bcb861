//! `bench neighbours`: the cost of another service's rows in the same schema.

use std::sync::Arc;
use std::time::Duration;

use stepfast::queue::{DEFAULT_QUEUE, Queue};
use stepfast::store::{Claim, Heartbeat, WorkerInfo};
use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::time::Instant;

use crate::experiments::queue::backlog::QueueStore;
use crate::experiments::workflows::{self, IdSource, Mode, WorkflowParameters};
use crate::experiments::writes::wait_for_all;
use crate::measure::{Latencies, median};
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};

/// The target: the maximum slowdown, in percent.
const MAX_SLOWDOWN_PERCENT: f64 = 5.0;
/// The number of foreign rows of each kind from which on the target applies.
const MIN_ROWS_FOR_TARGET: usize = 1_000_000;
/// The number of callers that store finished executions.
const FILL_CALLERS: usize = 4_096;
/// The number of executions that one call starts while a store is filled.
const STARTS_PER_CALL: usize = 20_000;
/// The number of queues in which executions of the other service wait.
const FOREIGN_QUEUES: usize = 10;
/// The duration of a sleep that does not end during the experiment.
const LONG_SLEEP: Duration = Duration::from_hours(1_000);
/// The number of steps of a workflow with steps.
const STEPS: usize = 3;
/// The ratio of the executions of a run to the heartbeats, or to the claims, of a run.
const EXECUTIONS_PER_CALL: usize = 100;

/// The parameters of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourParameters {
    /// The number of finished executions of the other service.
    pub finished: usize,
    /// The number of its executions that wait in queues.
    pub waiting: usize,
    /// The number of its executions that sleep.
    pub sleeping: usize,
    /// The number of concurrent callers.
    pub concurrency: usize,
    /// The number of executions in each run.
    pub iterations: usize,
    /// The number of runs of each operation on both stores. The median counts.
    pub runs: usize,
}

impl NeighbourParameters {
    /// The number of executions that the experiment stores or runs, for the display of progress.
    pub fn total(&self) -> u64 {
        let measured = 2 * self.runs * Operation::ALL.len() * self.iterations;
        (self.finished + self.waiting + self.sleeping + measured) as u64
    }
}

/// An operation of the measured service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Workflows(Mode),
    Steps(Mode),
    Enqueue,
    /// Runs the executions that [`Operation::Enqueue`] has enqueued.
    Drain,
    Heartbeat,
    EmptyClaim,
}

impl Operation {
    const ALL: [Operation; 8] = [
        Operation::Workflows(Mode::Start),
        Operation::Workflows(Mode::Run),
        Operation::Steps(Mode::Start),
        Operation::Steps(Mode::Run),
        Operation::Enqueue,
        Operation::Drain,
        Operation::Heartbeat,
        Operation::EmptyClaim,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Operation::Workflows(Mode::Start) => "start",
            Operation::Workflows(Mode::Run) => "run",
            Operation::Steps(Mode::Start) => "start, 3 steps",
            Operation::Steps(Mode::Run) => "run, 3 steps",
            Operation::Enqueue => "enqueue",
            Operation::Drain => "drain",
            Operation::Heartbeat => "heartbeat",
            Operation::EmptyClaim => "claim of nothing",
        }
    }
}

/// Measures operations on a store with the rows of another service, alternating with a store without them. The rows of
/// the measured runs stay in both stores, so that both grow alike.
pub async fn run(
    location: &TargetLocation,
    parameters: NeighbourParameters,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let shared = location.open_fresh().await?;
    let own = location.sibling(&shared).open_fresh().await?;
    let measured = measure(&shared, &own, parameters, progress).await;
    own.close().await?;
    shared.close().await?;
    measured
}

async fn measure(
    shared: &Target,
    own: &Target,
    parameters: NeighbourParameters,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    fill(shared, parameters, progress).await?;
    own.settle().await?;
    let mut done = (parameters.finished + parameters.waiting + parameters.sleeping) as u64;
    let mut services = [Service::open(shared, parameters).await?, Service::open(own, parameters).await?];
    let mut rates = vec![[Vec::new(), Vec::new()]; Operation::ALL.len()];
    for round in 0..=parameters.runs {
        for (operation, rates) in Operation::ALL.into_iter().zip(&mut rates) {
            // the order alternates, so that neither always runs second
            for i in if round.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
                let place = if i == 0 { "beside another service" } else { "alone" };
                progress(done, &format!("{} {place}", operation.as_str()));
                let rate = services[i].measure(operation).await?;
                // the first round is a warm-up
                if round > 0 {
                    rates[i].push(rate);
                    done += parameters.iterations as u64;
                }
            }
        }
    }
    for service in services {
        service.queue.close().await?;
    }
    let is_full = |rows: usize| rows >= MIN_ROWS_FOR_TARGET;
    let limit = (is_full(parameters.finished) && is_full(parameters.waiting) && is_full(parameters.sleeping))
        .then_some(MAX_SLOWDOWN_PERCENT);
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    for (operation, [beside, alone]) in Operation::ALL.into_iter().zip(&rates) {
        for (name, rates) in [("beside another service", beside), ("alone", alone)] {
            let per_second = median(rates).unwrap_or_default();
            let completed = parameters.count(operation) as u64;
            rows.push(Row {
                mode: Some(format!("{}, {name}", operation.as_str())),
                concurrency: Some(parameters.concurrency),
                completed,
                per_second,
                seconds: completed as f64 / per_second.max(1e-9),
                ..Row::default()
            });
        }
        let slowdowns: Vec<f64> = beside
            .iter()
            .zip(alone)
            .map(|(beside, alone)| (1.0 - beside / alone.max(1e-9)) * 100.0)
            .collect();
        let name = format!("{}: slower beside another service", operation.as_str());
        figures.push(Figure::new(name, median(&slowdowns).unwrap_or_default(), "%").at_most(limit));
    }
    Ok((rows, figures))
}

impl NeighbourParameters {
    /// Returns the number of operations in a run.
    fn count(&self, operation: Operation) -> usize {
        match operation {
            Operation::Heartbeat | Operation::EmptyClaim => (self.iterations / EXECUTIONS_PER_CALL).max(1),
            _ => self.iterations,
        }
    }
}

/// The measured service on one store.
struct Service<'t> {
    target: &'t Target,
    parameters: NeighbourParameters,
    queue: QueueStore<'t>,
}

impl<'t> Service<'t> {
    async fn open(target: &'t Target, parameters: NeighbourParameters) -> Result<Self, Error> {
        Ok(Self { target, parameters, queue: QueueStore::open(target).await? })
    }

    /// Returns the number of operations per second.
    async fn measure(&mut self, operation: Operation) -> Result<f64, Error> {
        let NeighbourParameters { concurrency, iterations, .. } = self.parameters;
        let run_workflows = async |mode, steps| {
            let parameters = WorkflowParameters {
                mode,
                ids: IdSource::Minted,
                concurrency,
                steps,
                iterations: Some(iterations),
            };
            workflows::run(self.target, parameters, &|_| {}).await.map(|row| row.per_second)
        };
        match operation {
            Operation::Workflows(mode) => run_workflows(mode, 0).await,
            Operation::Steps(mode) => run_workflows(mode, STEPS).await,
            Operation::Enqueue => self.queue.enqueue(concurrency, iterations).await,
            Operation::Drain => self.queue.run_executions(iterations, false).await.map(|run| run.per_second),
            Operation::Heartbeat | Operation::EmptyClaim => self.measure_calls(operation).await,
        }
    }

    /// Returns the number of heartbeats or empty claims per second of a worker that sends one after the other.
    async fn measure_calls(&self, operation: Operation) -> Result<f64, Error> {
        let store = self.target.store().await?;
        let workflows: Arc<[Arc<str>]> = ["bench without executions".into()].into();
        let info = WorkerInfo {
            host: "localhost".to_owned(),
            pid: std::process::id(),
            engine: env!("CARGO_PKG_VERSION").to_owned(),
            app_version: None,
            workflows: workflows.clone(),
            queues: None,
            is_client: false,
        };
        let registration = store.register(2, &info).await?;
        let (worker, epoch) = (registration.worker, registration.epoch);
        let count = self.parameters.count(operation);
        let begun = Instant::now();
        for _ in 0..count {
            let workflows = workflows.clone();
            if operation == Operation::Heartbeat {
                let (watched, held, app_version, queues) = (Vec::new(), None, None, None);
                store
                    .heartbeat(&Heartbeat { worker, epoch, watched, held, workflows, app_version, queues })
                    .await?;
            } else {
                let claim = Claim {
                    worker,
                    lane: 1,
                    epoch,
                    number: 1,
                    limit: 1_000,
                    max_bytes: 1 << 20,
                    max_bundles: usize::MAX,
                    busy_keys: Vec::new(),
                    workflows,
                    app_version: None,
                    queues: None,
                    from_quarantine: false,
                };
                store.claim(&claim).await?;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        store.close(worker).await?;
        Ok(count as f64 / seconds.max(1e-9))
    }
}

/// Stores the rows of another service, by an engine of that service, which ends afterwards.
async fn fill(
    target: &Target,
    parameters: NeighbourParameters,
    progress: &dyn Fn(u64, &str),
) -> Result<(), Error> {
    let NeighbourParameters { finished, waiting, sleeping, .. } = parameters;
    let noop = Workflow::new("neighbour", |_: Context, _: u32| async { Ok::<(), Failure>(()) });
    let sleeper = Workflow::new("neighbour sleeper", |mut cx: Context, _: u32| async move {
        cx.sleep(LONG_SLEEP).await;
        Ok::<(), Failure>(())
    });
    let names: Vec<String> = (0..FOREIGN_QUEUES).map(|n| format!("neighbour {n}")).collect();
    let builder = Engine::builder(target.store().await?).register(&noop).register(&sleeper);
    let mut builder = builder.serve_queues([DEFAULT_QUEUE]).max_running(10 * STARTS_PER_CALL);
    for name in &names {
        builder = builder.queue(Queue::new(name));
    }
    let engine = builder.open().await?;
    let latencies = Arc::new(Latencies::new(finished));
    let callers = (0..FILL_CALLERS.min(finished)).map(|_| {
        let (engine, noop, latencies) = (engine.clone(), noop.clone(), latencies.clone());
        tokio::spawn(async move {
            while let Some(n) = latencies.next() {
                let begun = Instant::now();
                let ran = engine.run(&noop, 0).await;
                latencies.record(n, begun, ran.is_ok());
            }
        })
    });
    let message = "storing finished executions";
    wait_for_all(callers.collect(), &latencies, &|n| progress(n, message)).await;
    let mut row = Row::default();
    latencies.fill(&mut row);
    if row.failed > 0 {
        return Err(Error::Unavailable(format!("{} of {finished} executions were not stored", row.failed)));
    }
    for (call, begin) in (0..waiting).step_by(STARTS_PER_CALL).enumerate() {
        progress((finished + begin) as u64, "storing executions that wait");
        let inputs = std::iter::repeat_n(0, STARTS_PER_CALL.min(waiting - begin));
        let starts = engine.start_many(&noop, inputs).queue(&names[call % names.len()]);
        starts.key(format!("key {call}")).await?;
    }
    for begin in (0..sleeping).step_by(STARTS_PER_CALL) {
        progress((finished + waiting + begin) as u64, "storing executions that sleep");
        engine.start_many(&sleeper, std::iter::repeat_n(0, STARTS_PER_CALL.min(sleeping - begin))).await?;
    }
    while engine.running_count() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    engine.shutdown(Duration::from_secs(60)).await?;
    target.settle().await
}
