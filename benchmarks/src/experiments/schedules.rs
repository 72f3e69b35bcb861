//! `bench schedules`: how long after its instant an execution begins, and what schedules cost while they wait.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use stepfast::clock::{Clock, SystemClock, Timestamp};
use stepfast::{CatchUp, Context, Engine, Error, Failure, Overlap, Schedule, Workflow};
use tokio::sync::mpsc;

use crate::measure::Samples;
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};

/// The time for which the statements of an idle engine are counted.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// The number of schedules that are set at a time.
const SETS_IN_FLIGHT: usize = 500;

/// The parameters of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleParameters {
    /// Schedules with an instant each second.
    pub schedules: usize,
    /// Instants of each of these schedules.
    pub instants: usize,
    /// Schedules that wait while statements are counted.
    pub waiting: usize,
}

impl ScheduleParameters {
    /// Returns the number of operations.
    pub fn total(&self) -> u64 {
        (self.schedules * (1 + self.instants) + self.waiting) as u64
    }
}

/// Runs the experiment. `progress` is called with the activity and the number of operations that are done.
pub async fn run(
    location: &TargetLocation,
    parameters: ScheduleParameters,
    progress: &dyn Fn(&'static str, u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let measured = measure(&target, parameters, progress).await;
    target.close().await?;
    measured
}

async fn measure(
    target: &Target,
    parameters: ScheduleParameters,
    progress: &dyn Fn(&'static str, u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (report, mut begun) = mpsc::unbounded_channel();
    let report = Arc::new(report);
    let workflow = Workflow::new("bench tick", move |cx: Context, (): ()| {
        let delay = cx.scheduled_at().map(|instant| SystemClock.now().as_micros() - instant.as_micros());
        let _ = report.send(delay.unwrap_or_default() as f64 / 1_000.0);
        async { Ok::<_, Failure>(()) }
    });
    let builder = Engine::builder(target.store().await?).register(&workflow);
    let engine = builder.suspend_after(Duration::ZERO).open().await?;
    let schedule = |name: String| Schedule::new(name, &workflow, &());

    progress("an idle engine with one schedule", 0);
    let hourly = Duration::from_secs(3_600);
    engine.set_schedule(&schedule("hourly 0".to_owned())?.every(hourly)).await?;
    let with_one = count_statements(&engine).await;

    progress("setting schedules", 0);
    let ScheduleParameters { schedules, instants, waiting } = parameters;
    let second = Duration::from_secs(1);
    // the schedules are set before their first instant
    let lead = Duration::from_secs(2) + Duration::from_millis(schedules as u64 * 2);
    let now = SystemClock.now().plus(lead).as_micros();
    let first = Timestamp::from_micros(now - now % 1_000_000);
    let last = first.plus(second * (instants - 1) as u32);
    let secondly = (0..schedules).map(|number| {
        let schedule = schedule(format!("secondly {number}"))?.every(second).starts_at(first).ends_at(last);
        Ok(schedule.overlap(Overlap::Allow).catch_up(CatchUp::All))
    });
    set_all(&engine, secondly.collect::<Result<_, Error>>()?).await?;
    let expected = schedules * instants;
    let mut delays = Vec::with_capacity(expected);
    while delays.len() < expected {
        let Some(delay) = begun.recv().await else { break };
        delays.push(delay);
        progress("instants each second", (schedules + delays.len()) as u64);
    }

    progress("setting schedules that wait", (schedules + expected) as u64);
    let hourly = (1..waiting).map(|number| Ok(schedule(format!("hourly {number}"))?.every(hourly)));
    set_all(&engine, hourly.collect::<Result<_, Error>>()?).await?;
    let with_many = count_statements(&engine).await;
    engine.shutdown(Duration::from_secs(30)).await?;

    let mut row = delays.iter().copied().collect::<Samples>().row("begin of an execution after its instant");
    row.seconds = instants as f64;
    row.per_second = expected as f64 / row.seconds;
    let figures = vec![
        Figure::new("statements of an idle engine with one schedule", with_one, "/s"),
        Figure::new(format!("the same with {waiting} schedules"), with_many, "/s").at_most(with_one + 1.0),
    ];
    Ok((vec![row], figures))
}

async fn set_all(engine: &Engine, schedules: Vec<Schedule>) -> Result<(), Error> {
    let sets = schedules.into_iter().map(|schedule| async move { engine.set_schedule(&schedule).await });
    stream::iter(sets).buffer_unordered(SETS_IN_FLIGHT).try_collect::<()>().await
}

/// Counts the statements and reads of an engine without work, per second.
async fn count_statements(engine: &Engine) -> f64 {
    while engine.running_count() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // the worker deletes the records of executions that have ended, and then is idle
    tokio::time::sleep(IDLE_TIME).await;
    let count = || {
        let counts = engine.store().counters().snapshot();
        (counts.statements + counts.reads) as f64
    };
    let before = count();
    tokio::time::sleep(IDLE_TIME).await;
    (count() - before) / IDLE_TIME.as_secs_f64()
}
