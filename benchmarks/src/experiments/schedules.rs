//! `bench schedules`: how long after its instant an execution begins.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use stepfast::clock::{Clock, SystemClock, Timestamp};
use stepfast::{CatchUp, Context, Engine, Error, Failure, Overlap, Schedule, Workflow};
use tokio::sync::mpsc;

use crate::measure::Samples;
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};

/// The number of schedules that are set at a time.
const SETS_IN_FLIGHT: usize = 500;

/// The parameters of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleParameters {
    /// Schedules with an instant each second.
    pub schedules: usize,
    /// Instants of each of these schedules.
    pub instants: usize,
}

impl ScheduleParameters {
    /// Returns the number of operations.
    pub fn total(&self) -> u64 {
        (self.schedules * (1 + self.instants)) as u64
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

    progress("setting schedules", 0);
    let ScheduleParameters { schedules, instants } = parameters;
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

    engine.shutdown(Duration::from_secs(30)).await?;

    let mut row = delays.iter().copied().collect::<Samples>().row("begin of an execution after its instant");
    row.seconds = instants as f64;
    row.per_second = expected as f64 / row.seconds;
    let missing = expected.saturating_sub(delays.len());
    Ok((vec![row], vec![Figure::new("instants without an execution", missing as f64, "").at_most(0.0)]))
}

async fn set_all(engine: &Engine, schedules: Vec<Schedule>) -> Result<(), Error> {
    let sets = schedules.into_iter().map(|schedule| async move { engine.set_schedule(&schedule).await });
    stream::iter(sets).buffer_unordered(SETS_IN_FLIGHT).try_collect::<()>().await
}
