//! `bench memory`: what an execution costs in memory while it waits in a step, and a burst of starts.

use std::sync::Arc;
use std::time::Duration;

use stepfast::{Context, Engine, Error, Failure, Handle, Workflow};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::measure::Latencies;
use crate::report::Row;
use crate::target::Target;

/// Memory of this process now, in bytes.
fn resident() -> u64 {
    status("VmRSS:")
}

/// The most memory that this process has had, in bytes.
pub fn peak() -> u64 {
    status("VmHWM:")
}

fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Starts `few`, then `many` executions that all wait in a step for a channel: bytes per execution of the
/// growth between, and the row of the run.
pub async fn blocked(target: &Target, few: usize, many: usize) -> Result<(f64, Row), Error> {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let workflow = Workflow::new("blocked", move |mut cx: Context, (): ()| {
        let gate = held.clone();
        async move {
            cx.step("wait", || async {
                let _ = gate.acquire().await;
                Ok::<(), Failure>(())
            })
            .await
        }
    });
    let engine =
        Engine::builder(target.store().await?).register(&workflow).max_running(many + 1).open().await?;
    let latencies = Latencies::new(many);
    let mut handles: Vec<Handle<()>> = Vec::with_capacity(many);
    let mut before = 0;
    while handles.len() < many {
        let batch = (0..1_000).map(|_| std::future::IntoFuture::into_future(engine.start(&workflow, ())));
        for handle in all(batch).await {
            let (n, begun) = (latencies.next().unwrap_or(0), Instant::now());
            handles.push(handle?);
            latencies.note(n, begun, true);
        }
        if handles.len() == few {
            before = resident();
        }
    }
    let each = resident().saturating_sub(before) as f64 / (many - few) as f64;
    gate.close();
    for handle in &handles {
        handle.result().await?;
    }
    let mut row = Row { mode: Some("blocked".into()), concurrency: Some(many), ..Row::default() };
    latencies.fill(&mut row);
    engine.shutdown(Duration::from_secs(10)).await?;
    Ok((each, row))
}

/// Starts `burst` no-op executions at once and waits for all: the row of the run.
pub async fn burst(target: &Target, burst: usize) -> Result<Row, Error> {
    let workflow = crate::workflows::workflow();
    let engine = Engine::builder(target.store().await?).register(&workflow).open().await?;
    let latencies = Arc::new(Latencies::new(burst));
    let started: Vec<_> = (0..burst)
        .map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            tokio::spawn(async move {
                let (n, begun) = (latencies.next().unwrap_or(0), Instant::now());
                let result = async { engine.start(&workflow, 1).await?.result().await }.await;
                latencies.note(n, begun, result.is_ok());
            })
        })
        .collect();
    for task in started {
        let _ = task.await;
    }
    let mut row = Row { mode: Some("burst".into()), concurrency: Some(burst), ..Row::default() };
    latencies.fill(&mut row);
    engine.shutdown(Duration::from_secs(10)).await?;
    Ok(row)
}

/// Polls all of them side by side; their outputs in order.
async fn all<F: Future + Unpin>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Some).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |cx| {
        let mut is_pending = false;
        for (future, output) in futures.iter_mut().zip(outputs.iter_mut()) {
            if let Some(polled) = future {
                match std::pin::Pin::new(polled).poll(cx) {
                    std::task::Poll::Ready(ready) => {
                        *output = Some(ready);
                        *future = None;
                    }
                    std::task::Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(outputs.iter_mut().filter_map(Option::take).collect())
    })
    .await
}
