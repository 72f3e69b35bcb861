//! `bench streams`: values from a step to readers of its stream, in the same process and in another one.

use std::time::Duration;

use futures_util::future::try_join_all;
use stepfast::clock::{Clock, SystemClock};
use stepfast::{Client, Context, Engine, Error, Failure, Workflow};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::measure::Samples;
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};
use crate::worker::Worker;

/// The name of the stream.
const STREAM: &str = "values";
/// The interval at which a writer with a rate writes.
const TICK: Duration = Duration::from_millis(1);
/// The target: the maximum time from the writing of a value to a reader in another process, for 99 of 100 values.
const TARGET_TIME: Duration = Duration::from_millis(20);

/// The parameters of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct StreamParameters {
    /// Values of each stream.
    pub count: usize,
    /// Values that the step writes per second to the readers in another process.
    pub rate: usize,
    /// Readers of the same stream.
    pub readers: usize,
}

/// The input of the writing workflow: the number of values, and how many are written per second; 0 for no limit.
type WriterInput = (usize, usize);

/// Returns a workflow whose step writes times to a stream, in microseconds since 1970.
pub(crate) fn workflow() -> Workflow<WriterInput, ()> {
    Workflow::new("bench stream", |mut cx: Context, (count, rate): WriterInput| async move {
        let stream = cx.stream_writer(STREAM);
        cx.step("write", async || {
            let mut ticks = interval(TICK);
            // after a pause, the values that are due are written at once
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let per_tick = if rate == 0 { count } else { (rate / 1_000).max(1) };
            let mut written = 0;
            while written < count {
                if rate > 0 {
                    ticks.tick().await;
                }
                for _ in 0..per_tick.min(count - written) {
                    stream.write(&micros_now()).await?;
                    written += 1;
                }
            }
            Ok::<_, Failure>(())
        })
        .await
    })
}

fn micros_now() -> i64 {
    SystemClock.now().as_micros()
}

/// Runs the experiment. `progress` is called with the activity.
pub async fn run(
    location: &TargetLocation,
    parameters: StreamParameters,
    progress: &dyn Fn(&'static str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let measured = measure(&target, parameters, progress).await;
    target.close().await?;
    measured
}

async fn measure(
    target: &Target,
    parameters: StreamParameters,
    progress: &dyn Fn(&'static str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let StreamParameters { count, rate, readers } = parameters;
    let workflow = workflow();
    let engine = Engine::builder(target.store().await?).register(&workflow).open().await?;
    progress("one reader in the same process, without a pause");
    let alone = read(&engine, &workflow, (count, 0), 1).await?;
    engine.shutdown(Duration::from_secs(10)).await?;

    let worker = Worker::start_one(&target.url).await?;
    let client = Client::open(target.store().await?).await?;
    progress("one reader in another process, without a pause");
    let fast = read(&client, &workflow, (count, 0), 1).await?;
    progress("one reader in another process");
    let paced = read(&client, &workflow, (count, rate), 1).await?;
    progress("many readers in another process");
    let many = read(&client, &workflow, (count / 10, rate / 10), readers).await?;
    client.into_engine().shutdown(Duration::from_secs(10)).await?;
    worker.wait().await?;
    let p99 = paced.p99_ms;
    let rows = vec![
        Row { mode: Some("one reader, as fast as possible".to_owned()), ..alone },
        Row { mode: Some("in another process, as fast as possible".to_owned()), ..fast },
        Row { mode: Some(format!("in another process, {rate}/s")), ..paced },
        Row { mode: Some(format!("{readers} readers in another process, {}/s", rate / 10)), ..many },
    ];
    let target_ms = TARGET_TIME.as_secs_f64() * 1_000.0;
    let figures =
        vec![Figure::new("value to a reader in another process, p99", p99, "ms").at_most(target_ms)];
    Ok((rows, figures))
}

/// Starts a writer, and reads its stream by some readers at the same time. The samples of the row are the times from the
/// writing of each value to each of its readers.
async fn read(
    engine: &Engine,
    workflow: &Workflow<WriterInput, ()>,
    input: WriterInput,
    readers: usize,
) -> Result<Row, Error> {
    let begun = Instant::now();
    let handle = engine.start(workflow, input).await?;
    let reads = (0..readers).map(|_| async {
        let mut reader = handle.read_stream::<i64>(STREAM).await?;
        let mut times = Vec::with_capacity(input.0);
        while let Some(value) = reader.next().await? {
            times.push((micros_now() - value.value) as f64 / 1_000.0);
        }
        Ok::<_, Error>(times)
    });
    let times: Samples = try_join_all(reads).await?.into_iter().flatten().collect();
    let seconds = begun.elapsed().as_secs_f64();
    handle.result().await?;
    let per_second = times.len() as f64 / seconds.max(1e-9);
    Ok(Row { concurrency: Some(readers), seconds, per_second, ..times.row("") })
}
