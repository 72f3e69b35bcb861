//! What the workers of the chaos suite run, and what must come of it.
//!
//! A body tells that it begins as those of [`victim`](crate::crash::child) do, so [`check`](crate::crash::promises) can judge both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use stepfast::clock::{Clock, SystemClock};
use stepfast::{Context, EngineBuilder, Failure, Workflow};
use tokio::sync::watch;

use crate::crash::child::LineSink;
use crate::fixtures::later_version;

/// Children of an order.
pub const CHILDREN: usize = 1;
/// Beats of a [`Load::beat`].
pub const BEATS: u32 = 60;
/// How long a [`Load::nap`] sleeps.
pub const NAP: Duration = Duration::from_millis(1500);
/// One order in so many has a value of several rows.
const RARE: u32 = 16;

/// The workflows of a worker.
#[derive(Clone)]
pub struct Load {
    /// Steps in a row and side by side, failing attempts, a child, sleeps that suspend, large values.
    pub order: Workflow<u32, String>,
    item: Workflow<u32, String>,
    /// One short step after another, for some seconds.
    pub beat: Workflow<u32, String>,
    /// Asks the database for the time before and after a sleep.
    pub nap: Workflow<u32, String>,
    /// Its first step ends only in a process of the later version.
    pub ferry: Workflow<u32, String>,
    /// Its step ends the process, whenever it runs.
    pub culprit: Workflow<u32, String>,
    /// No step at all in most cases. One in eight has a step, another one in eight a sleep that suspends. While the gate
    /// of the worker is closed, none ends.
    pub pass: Workflow<u32, String>,
}

/// The gate of a worker: true while executions of [`Load::pass`] may end.
pub type Gate = watch::Receiver<bool>;

/// Who tells, and how far this process's clock is ahead of the machine's, in microseconds.
#[derive(Clone)]
pub struct Teller {
    /// Who listens.
    pub ear: LineSink,
    /// Taken off the times that are told.
    pub ahead: i64,
}

impl Teller {
    /// The machine's time in microseconds.
    pub fn now(&self) -> i64 {
        SystemClock.now().as_micros() - self.ahead
    }

    /// A step's body, which comes after the recorded step `cause`: over after its task has been polled twice.
    async fn body(&self, me: &str, step: &str, cause: &str) -> Result<String, Failure> {
        (self.ear)(&format!("body {} {me} {step} {cause}", self.now()));
        tokio::task::yield_now().await;
        Ok(format!("{step} done"))
    }
}

/// What order `n` comes to.
pub fn expected(n: u32) -> String {
    let mut all = vec!["reserve", "charge"];
    if n.is_multiple_of(2) {
        all.push("pack");
    }
    if n.is_multiple_of(5) {
        all.extend(["side0", "side1"]);
    }
    all.push("ship");
    let mut all: Vec<String> = all.into_iter().map(|step| format!("{step} done")).collect();
    if n % RARE == 1 {
        all.push(LARGE.to_string());
    }
    all.join(",")
}

const LARGE: usize = 150_000;

impl Load {
    /// Workflows that tell. `sql` is the database that naps ask for the time.
    pub fn new(teller: &Teller, sql: Option<Arc<tokio_postgres::Client>>, gate: Gate) -> Self {
        let item = item(teller.clone());
        Self {
            order: order(teller.clone(), item.clone()),
            item,
            beat: beat(teller.clone()),
            nap: nap(sql),
            ferry: ferry(teller.clone()),
            culprit: Workflow::new("culprit", |mut cx: Context, _: u32| async move {
                cx.step("crash", async || -> Result<String, Failure> { std::process::abort() }).await
            }),
            pass: pass(teller.clone(), gate),
        }
    }

    /// Registers all of them.
    pub fn register(&self, builder: EngineBuilder) -> EngineBuilder {
        let Self { order, item, beat, nap, ferry, culprit, pass } = self;
        let builder = builder.register(order).register(item).register(beat);
        builder.register(nap).register(ferry).register(culprit).register(pass)
    }
}

fn item(teller: Teller) -> Workflow<u32, String> {
    Workflow::new("item", move |mut cx: Context, _: u32| {
        let teller = teller.clone();
        async move {
            let me = cx.execution_key();
            cx.step("pack", || teller.body(&me, "pack", "-")).await
        }
    })
}

fn order(teller: Teller, item: Workflow<u32, String>) -> Workflow<u32, String> {
    Workflow::new("order", move |mut cx: Context, n: u32| {
        let (teller, item) = (teller.clone(), item.clone());
        async move {
            let me = cx.execution_key();
            let mut all = vec![cx.step("reserve", || teller.body(&me, "reserve", "-")).args(&n).await?];
            let failures = AtomicU32::new(u32::from(n.is_multiple_of(3)));
            let charge = cx
                .step("charge", async || {
                    if failures.swap(0, SeqCst) > 0 {
                        return Err(Failure::new("not yet"));
                    }
                    teller.body(&me, "charge", "reserve").await
                })
                .retries(9)
                .backoff(Duration::from_millis(1), Duration::from_millis(2));
            all.push(charge.await?);
            if n.is_multiple_of(4) {
                // beyond what the engine keeps in memory: the execution suspends
                cx.sleep(Duration::from_millis(30)).await;
            }
            if n.is_multiple_of(2) {
                all.push(cx.child(&item, n).await?);
            }
            if n.is_multiple_of(5) {
                let side = cx
                    .map(0..2u32, 2, |mut cx, i| {
                        let (teller, me, step) = (teller.clone(), me.clone(), format!("side{i}"));
                        async move { cx.step("side", || teller.body(&me, &step, "charge")).await }
                    })
                    .await;
                all.extend(side.into_iter().collect::<Result<Vec<_>, _>>()?);
            }
            all.push(cx.step("ship", || teller.body(&me, "ship", "charge")).await?);
            if n % RARE == 1 {
                let large = cx.step("large", async || Ok::<_, Failure>("x".repeat(LARGE))).await?;
                all.push(large.len().to_string());
            }
            Ok::<_, Failure>(all.join(","))
        }
    })
}

fn beat(teller: Teller) -> Workflow<u32, String> {
    Workflow::new("beat", move |mut cx: Context, _: u32| {
        let teller = teller.clone();
        async move {
            let me = cx.execution_key();
            let mut last = "-".to_owned();
            for i in 0..BEATS {
                let step = format!("beat{i}");
                cx.step("beat", || teller.body(&me, &step, &last)).args(&i).await?;
                last = step;
                cx.sleep(Duration::from_millis(50)).await;
            }
            Ok::<_, Failure>(BEATS.to_string())
        }
    })
}

fn ferry(teller: Teller) -> Workflow<u32, String> {
    Workflow::new("ferry", move |mut cx: Context, _: u32| {
        let teller = teller.clone();
        async move {
            let me = cx.execution_key();
            let cross = async || {
                if !later_version::is_later() {
                    std::future::pending::<()>().await;
                }
                teller.body(&me, "cross", "-").await
            };
            cx.step("cross", cross).await?;
            cx.step("land", || teller.body(&me, "land", "cross")).await
        }
    })
}

/// Comes to the time by the database's clock before and after the sleep, in microseconds.
fn nap(sql: Option<Arc<tokio_postgres::Client>>) -> Workflow<u32, String> {
    Workflow::new("nap", move |mut cx: Context, _: u32| {
        let sql = sql.clone();
        async move {
            let before = cx.step("before", || server_time(sql.as_deref())).await?;
            cx.sleep(NAP).await;
            let after = cx.step("after", || server_time(sql.as_deref())).await?;
            Ok::<_, Failure>(format!("{before} {after}"))
        }
    })
}

/// Returns the output of pass `n`.
pub fn passed(n: u32) -> String {
    n.to_string()
}

fn pass(teller: Teller, gate: Gate) -> Workflow<u32, String> {
    Workflow::new("pass", move |mut cx: Context, n: u32| {
        let (teller, mut gate) = (teller.clone(), gate.clone());
        async move {
            match n % 8 {
                0 => {
                    let me = cx.execution_key();
                    cx.step("pass", || teller.body(&me, "pass", "-")).await?;
                }
                // beyond what the engine keeps in memory: the execution suspends
                1 => cx.sleep(Duration::from_millis(30)).await,
                _ => {}
            }
            let is_open = gate.wait_for(|is_open| *is_open).await.is_ok();
            // the sender lives as long as the process
            if is_open { Ok(passed(n)) } else { Err(Failure::new("the gate is gone")) }
        }
    })
}

async fn server_time(sql: Option<&tokio_postgres::Client>) -> Result<i64, Failure> {
    let sql = sql.ok_or_else(|| Failure::new("naps need a database to ask"))?;
    let ask = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let row = sql.query_one(ask, &[]).await.map_err(|error| Failure::new(error.to_string()))?;
    Ok(row.get(0))
}
