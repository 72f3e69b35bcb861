//! `bench waits`: a long loop that is suspended before each message, and many executions that are suspended on messages.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::experiments::memory::resident_bytes;
use crate::measure::Samples;
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};

/// The number of messages that a part of the loop receives.
const ROUNDS_PER_PART: usize = 100;
/// The number of executions that one call starts.
const STARTS_PER_CALL: usize = 20_000;
/// The number of messages that are under way at a time.
const MESSAGES_IN_FLIGHT: usize = 2_000;
/// The target: the maximum ratio of the time of a round at the end of the loop to that at its beginning.
const MAX_RATIO: f64 = 1.2;
/// The target: the maximum memory of a suspended execution, in bytes.
const MAX_BYTES: f64 = 200.0;
/// The target: the maximum time per suspended execution that a message ends, in microseconds.
const MAX_MICROS: f64 = 100.0;

/// Runs the experiment, with a loop of this many messages, and this many suspended executions. `progress` is called with the
/// activity and the number of operations that are done.
pub async fn run(
    location: &TargetLocation,
    rounds: usize,
    executions: usize,
    progress: &dyn Fn(&'static str, u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let measured = measure(&target, rounds, executions, progress).await;
    target.close().await?;
    measured
}

async fn measure(
    target: &Target,
    rounds: usize,
    executions: usize,
    progress: &dyn Fn(&'static str, u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (mut rows, mut figures) = measure_loop(target, rounds, progress).await?;
    let (suspended_rows, suspended_figures) = measure_suspended(target, rounds, executions, progress).await?;
    rows.extend(suspended_rows);
    figures.extend(suspended_figures);
    Ok((rows, figures))
}

/// Waits until no execution is in memory.
async fn wait_until_suspended(engine: &Engine) {
    while engine.running_count() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Measures the rounds of an execution that is suspended before each message, and continues as new now and then.
async fn measure_loop(
    target: &Target,
    rounds: usize,
    progress: &dyn Fn(&'static str, u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (report, mut received) = mpsc::unbounded_channel();
    let report = Arc::new(report);
    let workflow = Workflow::new("bench loop", move |mut cx: Context, left: usize| {
        let report = report.clone();
        async move {
            for _ in 0..ROUNDS_PER_PART.min(left) {
                // a replay reports its rounds again
                let round = cx.receive::<usize>().await?;
                let _ = report.send((round, Instant::now()));
            }
            if left <= ROUNDS_PER_PART {
                return Ok::<_, Failure>(());
            }
            cx.continue_as_new(&(left - ROUNDS_PER_PART)).await
        }
    });
    let builder = Engine::builder(target.store().await?).register(&workflow);
    let engine = builder.suspend_after(Duration::ZERO).open().await?;
    let handle = engine.start(&workflow, rounds).workflow_id("loop").await?;
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds {
        wait_until_suspended(&engine).await;
        let begun = Instant::now();
        handle.send(&round).await?;
        let at = loop {
            match received.recv().await {
                Some((number, at)) if number == round => break at,
                Some(_) => {}
                None => return Err(Error::Shutdown),
            }
        };
        times.push(at.saturating_duration_since(begun).as_secs_f64() * 1_000.0);
        progress("rounds of a suspended loop", round as u64);
    }
    handle.result().await?;
    engine.shutdown(Duration::from_secs(10)).await?;
    let tenth = (rounds / 10).max(1);
    let of = |times: &[f64]| times.iter().copied().collect::<Samples>();
    let (first, last) = (of(&times[..tenth]), of(&times[times.len() - tenth..]));
    let ratio = last.median() / first.median().max(1e-9);
    let rows =
        vec![first.row("first rounds of a suspended loop"), last.row("last rounds of a suspended loop")];
    Ok((rows, vec![Figure::new("last rounds to first rounds, medians", ratio, "times").at_most(MAX_RATIO)]))
}

/// Measures executions that are suspended on messages: their memory, and how fast messages end them.
async fn measure_suspended(
    target: &Target,
    rounds: usize,
    executions: usize,
    progress: &dyn Fn(&'static str, u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let workflow =
        Workflow::new("bench waiter", |mut cx: Context, _: usize| async move { cx.receive::<usize>().await });
    let builder = Engine::builder(target.store().await?).register(&workflow);
    let engine = builder.max_running(2 * STARTS_PER_CALL).suspend_after(Duration::ZERO).open().await?;
    let mut ids = Vec::with_capacity(executions);
    let mut used = 0;
    for begin in (0..executions).step_by(STARTS_PER_CALL) {
        progress("starting executions that wait", (rounds + begin) as u64);
        let inputs = begin..executions.min(begin + STARTS_PER_CALL);
        let handles = engine.start_many(&workflow, inputs).await?;
        ids.extend(handles.iter().map(stepfast::Handle::workflow_id));
        wait_until_suspended(&engine).await;
        if begin == 0 {
            // the memory of the engine itself, and of executions that run, is in use by now
            used = resident_bytes();
        }
    }
    let later = executions.saturating_sub(STARTS_PER_CALL);
    let ids_bytes = later * (ids.first().map_or(0, String::len) + size_of::<String>());
    let grown = resident_bytes().saturating_sub(used).saturating_sub(ids_bytes as u64);
    let begun = Instant::now();
    let sends = ids.iter().map(|id| {
        let engine = &engine;
        async move { engine.send(id.as_str(), &1).await.map(drop) }
    });
    stream::iter(sends).buffer_unordered(MESSAGES_IN_FLIGHT).try_collect::<()>().await?;
    let sent = begun.elapsed().as_secs_f64();
    progress("waking", (rounds + executions / 2) as u64);
    let filter = stepfast::Filter { workflow: Some("bench waiter".into()), ..stepfast::Filter::default() };
    let completed = stepfast::Filter { statuses: vec![stepfast::Status::Completed], ..filter };
    while engine.count(&completed).await? < executions as u64 {
        tokio::task::yield_now().await;
    }
    let took = begun.elapsed().as_secs_f64();
    engine.shutdown(Duration::from_secs(30)).await?;
    let row = |mode: &str, seconds: f64| Row {
        mode: Some(mode.to_owned()),
        completed: executions as u64,
        seconds,
        per_second: executions as f64 / seconds.max(1e-9),
        ..Row::default()
    };
    let micros = took * 1e6 / executions as f64;
    let name = "time per suspended execution that a message ends";
    let mut figures = vec![Figure::new(name, micros, "µs").at_most(MAX_MICROS)];
    if later > 0 {
        let bytes = grown as f64 / later as f64;
        figures.push(Figure::new("memory of a suspended execution", bytes, "bytes").at_most(MAX_BYTES));
    }
    Ok((
        vec![row("messages to suspended executions", sent), row("suspended executions that end", took)],
        figures,
    ))
}
