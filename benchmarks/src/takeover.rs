//! `bench takeover`: how long the executions of a worker stand still that is killed, or asked to end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stepfast::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::measure::Samples;
use crate::report::{Figure, Row};
use crate::target::Place;
use crate::worker::{Told, What, Worker};

/// From so many kills on the target applies.
const ENOUGH: usize = 20;
/// By then an execution should run elsewhere.
const PROMISED: Duration = Duration::from_secs(5);
/// What does not run elsewhere by then counts as failed.
const LIMIT: Duration = Duration::from_secs(60);

/// What is done to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `SIGKILL`.
    Kill,
    /// `SIGTERM`: the worker hands back what runs.
    Drain,
}

impl End {
    fn as_str(self) -> &'static str {
        match self {
            End::Kill => "kill",
            End::Drain => "drain",
        }
    }
}

/// One combination of parameters.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// What is done to workers.
    pub end: End,
    /// How often.
    pub times: usize,
    /// How many workers there are, at least two.
    pub workers: usize,
    /// How many long executions there are in all.
    pub executions: u32,
}

/// The workers, and who was last heard to run what.
struct Workers {
    url: String,
    running: BTreeMap<usize, Worker>,
    owners: BTreeMap<u32, usize>,
    tell: mpsc::UnboundedSender<Told>,
    told: mpsc::UnboundedReceiver<Told>,
    /// The next one's number.
    next: usize,
}

impl Workers {
    /// Starts one more, and waits until it works.
    async fn add(&mut self) -> Result<usize, Error> {
        let number = self.next;
        self.next += 1;
        let worker = Worker::start(&self.url, number, self.tell.clone())?;
        self.running.insert(number, worker);
        let limit = Instant::now() + LIMIT;
        while let Some(told) = self.heard(limit).await {
            match told.what {
                What::Ready if told.worker == number => return Ok(number),
                What::Ended if told.worker == number => break,
                _ => {}
            }
        }
        Err(Error::Unavailable("a worker did not start; its messages are above".into()))
    }

    /// The next thing that is told, unless that takes too long; notes who runs what.
    async fn heard(&mut self, limit: Instant) -> Option<Told> {
        let told = timeout_at(limit, self.told.recv()).await.ok().flatten()?;
        // a dead one's last words may come late
        if let What::Begun(execution) = told.what
            && self.running.contains_key(&told.worker)
        {
            self.owners.insert(execution, told.worker);
        }
        Some(told)
    }

    /// The one that runs most, and what it runs.
    fn busiest(&self) -> Option<(usize, BTreeSet<u32>)> {
        let mut of: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
        for (&execution, &worker) in &self.owners {
            of.entry(worker).or_default().insert(execution);
        }
        of.into_iter().max_by_key(|(_, executions)| executions.len())
    }
}

/// Ends workers one by one; the row, and the figure with its target.
///
/// Each sample is of one execution: from the signal until the body of its next step has begun on another worker.
pub async fn run(
    place: &Place,
    parameters: Parameters,
    progress: &dyn Fn(u64),
) -> Result<(Row, Vec<Figure>), Error> {
    let target = place.fresh().await?;
    // makes the tables before anybody comes
    drop(target.store().await?);
    let result = on(&target.url, parameters, progress).await;
    target.close().await?;
    result
}

async fn on(url: &str, parameters: Parameters, progress: &dyn Fn(u64)) -> Result<(Row, Vec<Figure>), Error> {
    let Parameters { end, times, executions, .. } = parameters;
    let count = parameters.workers.max(2);
    let (tell, told) = mpsc::unbounded_channel();
    let (running, owners) = (BTreeMap::new(), BTreeMap::new());
    let mut workers = Workers { url: url.to_owned(), running, owners, tell, told, next: 0 };
    let each = (executions / count as u32).max(1);
    for _ in 0..count {
        let number = workers.add().await?;
        if let Some(worker) = workers.running.get_mut(&number) {
            worker.start_long(number as u32 * each, each).await?;
        }
    }
    let limit = Instant::now() + LIMIT;
    while workers.owners.len() < count * each as usize {
        if workers.heard(limit).await.is_none() {
            return Err(Error::Unavailable("the long executions did not all begin within a minute".into()));
        }
    }
    let mut samples = Samples::default();
    let (mut failed, mut late) = (0, 0);
    for done in 0..times {
        // anywhere between two looks of the others
        let pause = Instant::now() + Duration::from_millis(fastrand::u64(500..1_500));
        while workers.heard(pause).await.is_some() {}
        let Some((victim, mut left)) = workers.busiest() else { break };
        let Some(mut worker) = workers.running.remove(&victim) else {
            return Err(Error::Unavailable("a worker has ended by itself".into()));
        };
        let ended_at = Instant::now();
        match end {
            End::Kill => worker.kill()?,
            End::Drain => worker.drain()?,
        }
        while !left.is_empty() {
            let Some(Told { worker, what, at }) = workers.heard(ended_at + LIMIT).await else { break };
            if let What::Begun(execution) = what
                && worker != victim
                && left.remove(&execution)
            {
                let took = at.saturating_duration_since(ended_at);
                samples.push(took.as_secs_f64() * 1_000.0);
                late += u64::from(took > PROMISED);
            }
        }
        failed += left.len() as u64;
        workers.owners.retain(|execution, _| !left.contains(execution));
        worker.ended().await?;
        workers.add().await?;
        progress(done as u64 + 1);
    }
    for (_, mut worker) in std::mem::take(&mut workers.running) {
        worker.kill()?;
        worker.ended().await?;
    }
    let row = Row {
        concurrency: Some(count),
        callers: Some("workers".into()),
        failed,
        late: Some(late),
        ..samples.row(end.as_str())
    };
    let name = format!("99 of 100 executions run elsewhere after a {}: 5 s", end.as_str());
    let target = (times >= ENOUGH).then_some(PROMISED.as_secs_f64());
    let worst = if failed > 0 { LIMIT.as_secs_f64() } else { row.p99_ms / 1_000.0 };
    Ok((row, vec![Figure::new(name, worst, "s").at_most(target)]))
}
