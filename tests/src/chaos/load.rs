//! [`Load`]: the workflows that the workers of the chaos suite run, and their expected outputs.
//!
//! Bodies print the same lines as those of [`child`](crate::crash::child), so [`promises`](crate::crash::promises)
//! judges both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use stepfast::clock::{Clock, SystemClock};
use stepfast::{Context, EngineBuilder, Failure, Workflow};
use tokio::sync::watch;

use crate::chaos::neighbour::Service;
use crate::crash::child::LineSink;
use crate::fixtures::later_version;

/// Number of children of an order.
pub const CHILDREN: usize = 1;
/// Number of ticks of a [`Load::tick`].
pub const TICKS: u32 = 60;
/// Duration of the sleep in a [`Load::nap`].
pub const NAP: Duration = Duration::from_millis(1500);
/// The interval, in orders, at which one has a value of several chunks.
const RARE_INTERVAL: u32 = 16;

/// The workflows of a worker.
#[derive(Clone)]
pub struct Load {
    /// Steps in sequence and in branches, failed attempts, a child, sleeps that suspend, and large values.
    pub order: Workflow<u32, String>,
    item: Workflow<u32, String>,
    /// Short steps one after the other, for some seconds.
    pub tick: Workflow<u32, String>,
    /// A workflow that reads the database's time before and after a sleep.
    pub nap: Workflow<u32, String>,
    /// A workflow whose first step ends only in a process of the later version.
    pub upgrade: Workflow<u32, String>,
    /// A workflow whose step aborts the process whenever the step runs.
    pub poison: Workflow<u32, String>,
    /// A workflow without steps in most executions. One execution in eight has a step, and another one in eight a sleep
    /// that suspends. No execution ends while the gate of the worker is closed.
    pub gated: Workflow<u32, String>,
}

/// The gate of a worker: true while executions of [`Load::gated`] may end.
pub type Gate = watch::Receiver<bool>;

/// A sink for lines, with the clock offset of this process.
#[derive(Clone)]
pub struct Reporter {
    /// The receiver of lines.
    pub sink: LineSink,
    /// The offset of this process's clock from the machine's, in microseconds. Printed times exclude it.
    pub clock_offset: i64,
}

impl Reporter {
    /// Returns the machine's time in microseconds.
    pub fn now(&self) -> i64 {
        SystemClock.now().as_micros() - self.clock_offset
    }

    /// Runs a step's body, which follows the recorded step `cause`. The body ends after its task was polled twice.
    async fn run_body(&self, execution: &str, step: &str, cause: &str) -> Result<String, Failure> {
        (self.sink)(&format!("body {} {execution} {step} {cause}", self.now()));
        tokio::task::yield_now().await;
        Ok(format!("{step} done"))
    }
}

/// Returns the output of order `n`.
pub fn order_output(n: u32) -> String {
    let mut all = vec!["reserve", "charge"];
    if n.is_multiple_of(2) {
        all.push("pack");
    }
    if n.is_multiple_of(5) {
        all.extend(["side0", "side1"]);
    }
    all.push("ship");
    let mut all: Vec<String> = all.into_iter().map(|step| format!("{step} done")).collect();
    if n % RARE_INTERVAL == 1 {
        all.push(LARGE_BYTES.to_string());
    }
    all.join(",")
}

const LARGE_BYTES: usize = 150_000;

impl Load {
    /// Creates the workflows of a service, which print lines through `reporter`. Naps read the time of the database
    /// `sql`.
    pub fn new(
        reporter: &Reporter,
        sql: Option<Arc<tokio_postgres::Client>>,
        gate: Gate,
        service: Service,
    ) -> Self {
        let item = item_workflow(&service.name("item"), reporter.clone());
        Self {
            order: order_workflow(&service.name("order"), reporter.clone(), item.clone()),
            item,
            tick: tick_workflow(&service.name("tick"), reporter.clone()),
            nap: nap_workflow(&service.name("nap"), sql),
            upgrade: upgrade_workflow(&service.name("upgrade"), reporter.clone()),
            poison: Workflow::new(&service.name("poison"), |mut cx: Context, _: u32| async move {
                cx.step("crash", async || -> Result<String, Failure> { std::process::abort() }).await
            }),
            gated: gated_workflow(&service.name("gated"), reporter.clone(), gate),
        }
    }

    /// Registers all workflows.
    pub fn register(&self, builder: EngineBuilder) -> EngineBuilder {
        let Self { order, item, tick, nap, upgrade, poison, gated } = self;
        let builder = builder.register(order).register(item).register(tick);
        builder.register(nap).register(upgrade).register(poison).register(gated)
    }
}

fn item_workflow(name: &str, reporter: Reporter) -> Workflow<u32, String> {
    Workflow::new(name, move |mut cx: Context, _: u32| {
        let reporter = reporter.clone();
        async move {
            let me = cx.execution_key();
            cx.step("pack", || reporter.run_body(&me, "pack", "-")).await
        }
    })
}

fn order_workflow(name: &str, reporter: Reporter, item: Workflow<u32, String>) -> Workflow<u32, String> {
    Workflow::new(name, move |mut cx: Context, n: u32| {
        let (reporter, item) = (reporter.clone(), item.clone());
        async move {
            let me = cx.execution_key();
            let mut all = vec![cx.step("reserve", || reporter.run_body(&me, "reserve", "-")).args(&n).await?];
            let failures = AtomicU32::new(u32::from(n.is_multiple_of(3)));
            let charge = cx
                .step("charge", async || {
                    if failures.swap(0, SeqCst) > 0 {
                        return Err(Failure::new("not yet"));
                    }
                    reporter.run_body(&me, "charge", "reserve").await
                })
                .retries(9)
                .backoff(Duration::from_millis(1), Duration::from_millis(2));
            all.push(charge.await?);
            if n.is_multiple_of(4) {
                // longer than the engine keeps an execution in memory: it suspends
                cx.sleep(Duration::from_millis(30)).await;
            }
            if n.is_multiple_of(2) {
                all.push(cx.child(&item, n).await?);
            }
            if n.is_multiple_of(5) {
                let side = cx
                    .map(0..2u32, 2, |mut cx, i| {
                        let (reporter, me, step) = (reporter.clone(), me.clone(), format!("side{i}"));
                        async move { cx.step("side", || reporter.run_body(&me, &step, "charge")).await }
                    })
                    .await;
                all.extend(side.into_iter().collect::<Result<Vec<_>, _>>()?);
            }
            all.push(cx.step("ship", || reporter.run_body(&me, "ship", "charge")).await?);
            if n % RARE_INTERVAL == 1 {
                let large = cx.step("large", async || Ok::<_, Failure>("x".repeat(LARGE_BYTES))).await?;
                all.push(large.len().to_string());
            }
            Ok::<_, Failure>(all.join(","))
        }
    })
}

fn tick_workflow(name: &str, reporter: Reporter) -> Workflow<u32, String> {
    Workflow::new(name, move |mut cx: Context, _: u32| {
        let reporter = reporter.clone();
        async move {
            let me = cx.execution_key();
            let mut last = "-".to_owned();
            for i in 0..TICKS {
                let step = format!("tick{i}");
                cx.step("tick", || reporter.run_body(&me, &step, &last)).args(&i).await?;
                last = step;
                cx.sleep(Duration::from_millis(50)).await;
            }
            Ok::<_, Failure>(TICKS.to_string())
        }
    })
}

fn upgrade_workflow(name: &str, reporter: Reporter) -> Workflow<u32, String> {
    Workflow::new(name, move |mut cx: Context, _: u32| {
        let reporter = reporter.clone();
        async move {
            let me = cx.execution_key();
            let wait = async || {
                if !later_version::is_later() {
                    std::future::pending::<()>().await;
                }
                reporter.run_body(&me, "wait", "-").await
            };
            cx.step("wait", wait).await?;
            cx.step("after", || reporter.run_body(&me, "after", "wait")).await
        }
    })
}

/// Returns the workflow `nap`. Its output contains the database's time before and after the sleep, in microseconds.
fn nap_workflow(name: &str, sql: Option<Arc<tokio_postgres::Client>>) -> Workflow<u32, String> {
    Workflow::new(name, move |mut cx: Context, _: u32| {
        let sql = sql.clone();
        async move {
            let before = cx.step("before", || server_time(sql.as_deref())).await?;
            cx.sleep(NAP).await;
            let after = cx.step("after", || server_time(sql.as_deref())).await?;
            Ok::<_, Failure>(format!("{before} {after}"))
        }
    })
}

/// Returns the output of the gated workflow with input `n`.
pub fn gated_output(n: u32) -> String {
    n.to_string()
}

fn gated_workflow(name: &str, reporter: Reporter, gate: Gate) -> Workflow<u32, String> {
    Workflow::new(name, move |mut cx: Context, n: u32| {
        let (reporter, mut gate) = (reporter.clone(), gate.clone());
        async move {
            match n % 8 {
                0 => {
                    let me = cx.execution_key();
                    cx.step("gated", || reporter.run_body(&me, "gated", "-")).await?;
                }
                // longer than the engine keeps an execution in memory: it suspends
                1 => cx.sleep(Duration::from_millis(30)).await,
                _ => {}
            }
            let is_open = gate.wait_for(|is_open| *is_open).await.is_ok();
            // the sender lives as long as the process
            if is_open { Ok(gated_output(n)) } else { Err(Failure::new("the gate is gone")) }
        }
    })
}

async fn server_time(sql: Option<&tokio_postgres::Client>) -> Result<i64, Failure> {
    let sql = sql.ok_or_else(|| Failure::new("naps need a database to ask"))?;
    let ask = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let row = sql.query_one(ask, &[]).await.map_err(|error| Failure::new(error.to_string()))?;
    Ok(row.get(0))
}
