//! `bench steps --size` and `bench workflows --size`: the cost of the size of values, in time and on the disk.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::time::Instant;

use crate::bound::Probe;
use crate::experiments::workflows::{Mode, WorkflowParameters};
use crate::experiments::writes::wait_for_all;
use crate::measure::Latencies;
use crate::report::Row;
use crate::target::Target;

/// Random bytes of which every value is a slice, so that values cannot be compressed.
static RANDOM_BYTES: LazyLock<Bytes> = LazyLock::new(|| {
    let mut bytes = vec![0; 8 << 20];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes.into()
});

/// Returns a value of `size` bytes. Values of neighbouring `n` differ.
fn value(n: usize, size: usize) -> Bytes {
    let size = size.min(RANDOM_BYTES.len());
    let from = n.wrapping_mul(4_099) % (RANDOM_BYTES.len() - size + 1);
    RANDOM_BYTES.slice(from..from + size)
}

/// Returns a workflow with `steps` steps, each of which returns a value. Without steps it returns its input.
fn workflow(steps: usize, size: usize) -> Workflow<Bytes, Bytes> {
    Workflow::new("sized", move |mut cx: Context, input: Bytes| async move {
        for n in 0..steps {
            let from = n + fastrand::usize(..1 << 20);
            let len = cx.step("sized", || async { Ok::<_, Failure>(value(from, size)) }).await?.len();
            if len != size {
                return Err(Failure::new(format!("the step returned {len} bytes, not {size}")));
            }
        }
        Ok(if steps == 0 { input } else { Bytes::new() })
    })
}

/// Runs one combination on a new engine. Returns its row, with the bytes on the disk per workflow.
pub async fn run(
    target: &Target,
    parameters: WorkflowParameters,
    size: usize,
    progress: &dyn Fn(u64),
) -> Result<Row, Error> {
    let WorkflowParameters { mode, concurrency, steps, .. } = parameters;
    let workflow = workflow(steps, size);
    let before = target.bytes_before_run().await?;
    let builder = Engine::builder(target.store().await?).register(&workflow);
    let engine = builder.max_running(concurrency.max(10_000) + 1).open().await?;
    let input = if steps == 0 { size } else { 0 };
    let (total, warm_up) = (parameters.total(), parameters.warm_up_total());
    run_callers(&engine, &workflow, mode, concurrency.min(64), (warm_up, input), &|_| {}).await;
    let store = engine.store().clone();
    let probe = Probe::start(target, Some(&store)).await?;
    let counted = store.counters().snapshot();
    let bytes = target.bytes_written().await;
    let (latencies, elapsed) =
        run_callers(&engine, &workflow, mode, concurrency, (total, input), progress).await;
    let observation = probe.stop(Some(&store)).await?;
    let mut row = Row {
        mode: Some(mode.as_str().to_owned()),
        concurrency: Some(concurrency),
        steps: Some(steps),
        size: Some(size),
        ..Row::default()
    };
    latencies.fill_with_elapsed(elapsed, &mut row);
    let counted = store.counters().snapshot().since(&counted);
    row.flushes = counted.flushes;
    row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
    row.bytes_written = target.bytes_written().await - bytes;
    row.cpu_each = Some(observation.cpu_each(row.completed));
    engine.shutdown(Duration::from_secs(10)).await?;
    drop((engine, store));
    observation.fill(target, &mut row).await?;
    row.disk_bytes_each = parameters.bytes_each(before, target.bytes_stored().await?);
    Ok(row)
}

async fn run_callers(
    engine: &Engine,
    workflow: &Workflow<Bytes, Bytes>,
    mode: Mode,
    callers: usize,
    (total, input): (usize, usize),
    progress: &dyn Fn(u64),
) -> (Arc<Latencies>, Duration) {
    let latencies = Arc::new(Latencies::new(total));
    let begun = Instant::now();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            tokio::spawn(async move {
                while let Some(n) = latencies.next() {
                    let (begun, input) = (Instant::now(), value(n, input));
                    let output = call(&engine, &workflow, mode, input.clone()).await;
                    latencies.record(n, begun, output.is_ok_and(|output| output == input));
                }
            })
        })
        .collect();
    wait_for_all(callers, &latencies, progress).await;
    (latencies, begun.elapsed())
}

async fn call(
    engine: &Engine,
    workflow: &Workflow<Bytes, Bytes>,
    mode: Mode,
    input: Bytes,
) -> Result<Bytes, Error> {
    match mode {
        Mode::Run => engine.run(workflow, input).await,
        Mode::Start => engine.start(workflow, input).await?.result().await,
    }
}
