//! `bench idle`: the cost of an idle engine, and the duration of a workflow on it.

use std::time::Duration;

use stepfast::queue::Queue;
use stepfast::{Client, Error};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::bound::cpu_seconds;
use crate::experiments::workflows::{self, IdSource, Mode};
use crate::measure::{Samples, ms_since};
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation, postgres_error};
use crate::worker::{Worker, WorkerEventKind};

/// The minimum duration, in seconds, for which the target applies.
const MIN_SECONDS_FOR_TARGET: u64 = 20;
/// The time after which the work of opening an engine is done and in the server's statistics. A server counts the work of
/// idle sessions within ten seconds.
pub const SETTLE_TIME: Duration = Duration::from_secs(12);
/// The time limit of a single workflow, and of the start of a worker.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A progress callback: the current activity, and the progress in seconds, then in workflows on top.
type Progress<'a> = &'a dyn Fn(&'static str, u64);

/// Measures an engine with empty queues that is idle for `seconds`, after the time that it needs to settle
/// ([`SETTLE_TIME`]). Then runs `many` workflows, one at a time: in this process, and on a worker in another process.
pub async fn run(
    location: &TargetLocation,
    seconds: u64,
    queues: usize,
    many: usize,
    progress: Progress<'_>,
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let measured = measure(&target, seconds, queues, many, progress).await;
    target.close().await?;
    measured
}

async fn measure(
    target: &Target,
    seconds: u64,
    queues: usize,
    many: usize,
    progress: Progress<'_>,
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (engine, workflow) = workflows::open(target, 1).await?;
    for n in 0..queues {
        engine.set_queue(&Queue::new(format!("queue {n}"))).await?;
    }
    let mut figures = measure_idle_engine(target, seconds, progress).await?;
    let waited = SETTLE_TIME.as_secs() + seconds;
    progress("workflow by workflow, in one process", waited);
    let mut here = Samples::default();
    for _ in 0..many {
        let begun = Instant::now();
        workflows::call(&engine, &workflow, Mode::Start, IdSource::Minted, 0).await?;
        here.push(ms_since(begun));
    }
    engine.shutdown(Duration::from_secs(10)).await?;
    let report = |done| progress("workflow by workflow, across processes", waited + done);
    let across = across_processes(target, many, &report).await?;
    let (here, across) = (here.row("in one process"), across.row("across processes"));
    let limit = (seconds >= MIN_SECONDS_FOR_TARGET).then_some(5.0);
    figures.push(Figure::new("start to result across processes, median", across.p50_ms, "ms").at_most(limit));
    Ok((vec![here, across], figures))
}

/// Measures the cost of an idle engine.
async fn measure_idle_engine(
    target: &Target,
    seconds: u64,
    progress: Progress<'_>,
) -> Result<Vec<Figure>, Error> {
    let wait = async |activity, from: Duration, duration| {
        let (begun, end) = (Instant::now(), Instant::now() + duration);
        while Instant::now() < end {
            progress(activity, (from + begun.elapsed()).as_secs());
            tokio::time::sleep_until(end.min(Instant::now() + Duration::from_secs(1))).await;
        }
    };
    wait("until the engine has settled", Duration::ZERO, SETTLE_TIME).await;
    let activity = ServerActivity::detect(target).await?;
    let (begun, processor) = (Instant::now(), cpu_seconds());
    let before = activity.count(target).await?;
    wait("doing nothing", SETTLE_TIME, Duration::from_secs(seconds)).await;
    let after = activity.count(target).await?;
    let (took, processor) = (begun.elapsed().as_secs_f64(), cpu_seconds() - processor);
    let mut figures = Vec::new();
    if let Some((before, after)) = before.zip(after) {
        // the first query counts itself
        let count = (after - before - 1).max(0) as f64;
        let name = format!("{} of an idle engine at the server", activity.as_str());
        let limit = (seconds >= MIN_SECONDS_FOR_TARGET).then_some(2.0);
        figures.push(Figure::new(name, count / took, "per second").at_most(limit));
    }
    figures.push(Figure::new(
        "processor time of an idle engine",
        processor / took * 1_000.0,
        "ms per second",
    ));
    Ok(figures)
}

/// The server's statistics of its activity in this database.
enum ServerActivity {
    /// Statements: the extension `pg_stat_statements` is loaded.
    Statements,
    /// Transactions: a statement outside of a transaction counts as one, too.
    Transactions,
    /// No statistics, without a server.
    NoServer,
}

impl ServerActivity {
    async fn detect(target: &Target) -> Result<Self, Error> {
        let Some(client) = target.postgres() else { return Ok(ServerActivity::NoServer) };
        let create_extension =
            "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT count(*) FROM pg_stat_statements";
        match client.batch_execute(create_extension).await {
            Ok(()) => Ok(ServerActivity::Statements),
            Err(error) if error.is_closed() => Err(postgres_error(error)),
            Err(_) => Ok(ServerActivity::Transactions),
        }
    }

    fn as_str(&self) -> &'static str {
        if matches!(self, ServerActivity::Statements) { "statements" } else { "transactions" }
    }

    async fn count(&self, target: &Target) -> Result<Option<i64>, Error> {
        let sql = match self {
            ServerActivity::Statements => {
                "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
                 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
            }
            ServerActivity::Transactions => {
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            }
            ServerActivity::NoServer => return Ok(None),
        };
        let Some(client) = target.postgres() else { return Ok(None) };
        client.query_one(sql, &[]).await.map(|row| Some(row.get(0))).map_err(postgres_error)
    }
}

/// Measures no-op workflows that this process starts one at a time, and a worker in another process runs.
async fn across_processes(target: &Target, many: usize, progress: &dyn Fn(u64)) -> Result<Samples, Error> {
    let client = Client::open(target.store().await?).await?;
    let workflow = workflows::workflow();
    let (event_sender, mut events) = mpsc::unbounded_channel();
    let mut worker = Worker::start(&target.url, 0, event_sender)?;
    let ready = timeout(TIMEOUT, events.recv()).await.ok().flatten();
    if ready.map(|event| event.kind) != Some(WorkerEventKind::Ready) {
        return Err(Error::Unavailable("the worker did not start; its messages are above".into()));
    }
    let mut samples = Samples::default();
    // the first ones find cold caches, and a worker that has not yet noticed the other process
    for n in 0..many + 3 {
        if n == 3 {
            tokio::time::sleep(SETTLE_TIME).await;
        }
        let begun = Instant::now();
        let result = async { client.start(&workflow, 0).await?.result().await };
        let result = timeout(TIMEOUT, result).await;
        result
            .map_err(|_| Error::Unavailable("a worker took more than a minute for a workflow".into()))??;
        if n >= 3 {
            samples.push(ms_since(begun));
        }
        progress(n as u64);
    }
    worker.kill()?;
    worker.wait().await?;
    client.shutdown(Duration::from_secs(10)).await?;
    Ok(samples)
}
