//! `bench sleepers`: sleeps of many suspended executions that end at the same time.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use stepfast::clock::{Clock, SystemClock, Timestamp};
use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::time::Instant;

use crate::experiments::queue::RunCounter;
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};

/// The number of parts whose rates are compared.
const PARTS: u64 = 10;
/// The number of executions that one call starts.
const STARTS_PER_CALL: usize = 20_000;
/// The target: the maximum ratio of the time of the slowest part, but the first, to that of the median part.
const MAX_RATIO: f64 = 1.5;
/// The number of executions from which on the target applies.
const MIN_EXECUTIONS_FOR_TARGET: usize = 1_000_000;

/// Suspends `count` executions whose sleeps end at the same time, `wait` after the first start, and measures how fast they
/// continue and end. Fails if the sleeps end before all executions are suspended.
pub async fn run(
    location: &TargetLocation,
    count: usize,
    wait: Duration,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let measured = measure(&target, count, wait, progress).await;
    target.close().await?;
    measured
}

async fn measure(
    target: &Target,
    count: usize,
    wait: Duration,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let run_counter = Arc::new(RunCounter::default());
    let workflow = workflow(&run_counter);
    let builder = Engine::builder(target.store().await?).register(&workflow);
    let engine = builder.max_running(10 * STARTS_PER_CALL).suspend_after(Duration::ZERO).open().await?;
    let due_at = SystemClock.now().plus(wait);
    for begin in (0..count).step_by(STARTS_PER_CALL) {
        progress(begin as u64, "starting");
        let inputs = std::iter::repeat_n(due_at.as_micros(), STARTS_PER_CALL.min(count - begin));
        engine.start_many(&workflow, inputs).await?;
    }
    while engine.running_count() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    target.vacuum().await?;
    let left = due_at.since(SystemClock.now());
    if left.is_zero() || run_counter.count.load(SeqCst) > 0 {
        return Err(Error::Invalid {
            input: "seconds",
            reason: format!("{count} executions were not suspended within {wait:?}; give more seconds"),
        });
    }
    progress(count as u64, "sleeping");
    let due = Instant::now() + left;
    tokio::time::sleep_until(due).await;
    let (mut rows, mut seconds) = (Vec::new(), Vec::new());
    let mut begun = due;
    for part in 1..=PARTS {
        let until = count as u64 * part / PARTS;
        while run_counter.count.load(SeqCst) < until {
            run_counter.changed.notified().await;
            progress(count as u64 + run_counter.count.load(SeqCst), "continuing");
        }
        let completed = until - count as u64 * (part - 1) / PARTS;
        let took = begun.elapsed().as_secs_f64();
        begun = Instant::now();
        rows.push(Row {
            mode: Some(format!("part {part}")),
            completed,
            seconds: took,
            per_second: completed as f64 / took.max(1e-9),
            ..Row::default()
        });
        seconds.push(took);
    }
    while engine.running_count() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = due.elapsed().as_secs_f64();
    engine.shutdown(Duration::from_secs(60)).await?;
    rows.push(Row {
        mode: Some("all, to their durable ends".to_owned()),
        completed: count as u64,
        seconds: took,
        per_second: count as f64 / took.max(1e-9),
        ..Row::default()
    });
    // the first part contains the time until the sleeps are noticed
    let later = &mut seconds[1..];
    later.sort_by(f64::total_cmp);
    let ratio = later[later.len() - 1] / later[later.len() / 2].max(1e-9);
    let limit = (count >= MIN_EXECUTIONS_FOR_TARGET).then_some(MAX_RATIO);
    let figure =
        Figure::new("slowest part, but the first, to the median part", ratio, "times").at_most(limit);
    Ok((rows, vec![figure]))
}

/// Returns a workflow that sleeps until its input, a time in microseconds, and then counts itself.
fn workflow(run_counter: &Arc<RunCounter>) -> Workflow<i64, ()> {
    let run_counter = run_counter.clone();
    Workflow::new("bench sleeper", move |mut cx: Context, due_at: i64| {
        let run_counter = run_counter.clone();
        async move {
            // a replay ignores the duration: the due time is recorded
            cx.sleep(Timestamp::from_micros(due_at).since(SystemClock.now())).await;
            run_counter.count.fetch_add(1, SeqCst);
            run_counter.changed.notify_one();
            Ok::<(), Failure>(())
        }
    })
}
