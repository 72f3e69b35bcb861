//! `bench idle`: what an engine costs that has nothing to do, and how long a workflow takes then.

use std::time::Duration;

use stepfast::queue::Queue;
use stepfast::{Client, Error};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::bound::cpu_seconds;
use crate::measure::{Samples, ms_since};
use crate::report::{Figure, Row};
use crate::target::{Place, Target, unanswered};
use crate::worker::{What, Worker};
use crate::workflows::{self, Ids, Mode};

/// From so many seconds on the target applies.
const ENOUGH: u64 = 20;
/// What an engine does when it opens is over by then, and counted: a server counts what idle sessions did within ten seconds.
pub const SETTLED: Duration = Duration::from_secs(12);
/// Limit against hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Is told what goes on, and how far it is: in seconds, then in workflows on top.
type Progress<'a> = &'a dyn Fn(&'static str, u64);

/// An engine that is idle for so many seconds, after as many as it takes to settle ([`SETTLED`]), with so many queues that
/// are empty; then so many workflows, one at a time: in one process, and by a worker that is another process.
pub async fn run(
    place: &Place,
    seconds: u64,
    queues: usize,
    many: usize,
    progress: Progress<'_>,
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = place.fresh().await?;
    let measured = on(&target, seconds, queues, many, progress).await;
    target.close().await?;
    measured
}

async fn on(
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
    let mut figures = nothing(target, seconds, progress).await?;
    let waited = SETTLED.as_secs() + seconds;
    progress("workflow by workflow, in one process", waited);
    let mut here = Samples::default();
    for _ in 0..many {
        let begun = Instant::now();
        workflows::call(&engine, &workflow, Mode::Start, Ids::Minted, 0).await?;
        here.push(ms_since(begun));
    }
    engine.shutdown(Duration::from_secs(10)).await?;
    let told = |done| progress("workflow by workflow, across processes", waited + done);
    let across = across_processes(target, many, &told).await?;
    let (here, across) = (here.row("in one process"), across.row("across processes"));
    let limit = (seconds >= ENOUGH).then_some(5.0);
    figures.push(Figure::new("start to result across processes, median", across.p50_ms, "ms").at_most(limit));
    Ok((vec![here, across], figures))
}

/// What it costs to do nothing.
async fn nothing(target: &Target, seconds: u64, progress: Progress<'_>) -> Result<Vec<Figure>, Error> {
    let wait = async |doing, from: Duration, so_long| {
        let (begun, end) = (Instant::now(), Instant::now() + so_long);
        while Instant::now() < end {
            progress(doing, (from + begun.elapsed()).as_secs());
            tokio::time::sleep_until(end.min(Instant::now() + Duration::from_secs(1))).await;
        }
    };
    wait("until the engine has settled", Duration::ZERO, SETTLED).await;
    let asks = Asks::of(target).await?;
    let (begun, processor) = (Instant::now(), cpu_seconds());
    let before = asks.count(target).await?;
    wait("doing nothing", SETTLED, Duration::from_secs(seconds)).await;
    let after = asks.count(target).await?;
    let (took, processor) = (begun.elapsed().as_secs_f64(), cpu_seconds() - processor);
    let mut figures = Vec::new();
    if let Some((before, after)) = before.zip(after) {
        // the first count counts itself
        let asked = (after - before - 1).max(0) as f64;
        let name = format!("{} of an idle engine at the server", asks.as_str());
        let limit = (seconds >= ENOUGH).then_some(2.0);
        figures.push(Figure::new(name, asked / took, "per second").at_most(limit));
    }
    figures.push(Figure::new(
        "processor time of an idle engine",
        processor / took * 1_000.0,
        "ms per second",
    ));
    Ok(figures)
}

/// What the server can tell of what it was asked in this database.
enum Asks {
    /// Each statement: the extension `pg_stat_statements` is loaded.
    Statements,
    /// Each transaction: outside of transactions a statement is one, too.
    Transactions,
    /// There is no server.
    Nothing,
}

impl Asks {
    async fn of(target: &Target) -> Result<Self, Error> {
        let Some(client) = target.postgres() else { return Ok(Asks::Nothing) };
        let there =
            "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT count(*) FROM pg_stat_statements";
        match client.batch_execute(there).await {
            Ok(()) => Ok(Asks::Statements),
            Err(error) if error.is_closed() => Err(unanswered(error)),
            Err(_) => Ok(Asks::Transactions),
        }
    }

    fn as_str(&self) -> &'static str {
        if matches!(self, Asks::Statements) { "statements" } else { "transactions" }
    }

    async fn count(&self, target: &Target) -> Result<Option<i64>, Error> {
        let sql = match self {
            Asks::Statements => {
                "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
                 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
            }
            Asks::Transactions => {
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            }
            Asks::Nothing => return Ok(None),
        };
        let Some(client) = target.postgres() else { return Ok(None) };
        client.query_one(sql, &[]).await.map(|row| Some(row.get(0))).map_err(unanswered)
    }
}

/// No-op workflows, started here one at a time, and run by a worker that is another process.
async fn across_processes(target: &Target, many: usize, progress: &dyn Fn(u64)) -> Result<Samples, Error> {
    let client = Client::open(target.store().await?).await?;
    let workflow = workflows::workflow();
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut worker = Worker::start(&target.url, 0, tell)?;
    let ready = timeout(PATIENCE, told.recv()).await.ok().flatten();
    if ready.map(|told| told.what) != Some(What::Ready) {
        return Err(Error::Unavailable("the worker did not start; its messages are above".into()));
    }
    let mut samples = Samples::default();
    // the first ones find cold caches, and a worker that has not yet seen that it has company
    for n in 0..many + 3 {
        if n == 3 {
            tokio::time::sleep(SETTLED).await;
        }
        let begun = Instant::now();
        let result = async { client.start(&workflow, 0).await?.result().await };
        let result = timeout(PATIENCE, result).await;
        result
            .map_err(|_| Error::Unavailable("a worker took more than a minute for a workflow".into()))??;
        if n >= 3 {
            samples.push(ms_since(begun));
        }
        progress(n as u64);
    }
    worker.kill()?;
    worker.ended().await?;
    client.shutdown(Duration::from_secs(10)).await?;
    Ok(samples)
}
