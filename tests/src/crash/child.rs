//! The victim of the crash tests: workflows that use most of the engine, and the process that runs them
//! until it is done or killed, and tells what was acknowledged to it.
//!
//! What it tells, a line each: `started ID`, `ended ID OUTPUT`, `cancelled ID`, `asked ID` (a cancel that was
//! accepted), `body TIME EXECUTION STEP CAUSE` (a step's body begins; `CAUSE` is the step that the code made
//! before it, or `-`).

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use stepfast::clock::{Clock, SystemClock};
use stepfast::store::{Filter, RequestResult};
use stepfast::{Context, Engine, Error, Failure, Store, Workflow};
use tokio::sync::{Notify, watch};

use crate::crash::leftovers;

/// Who listens to what a victim tells.
pub type LineSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Names the database to a process that is to be the victim.
pub const URL_VARIABLE: &str = "STEPFAST_CRASH_VICTIM";
/// How many executions it starts.
pub const EXECUTIONS_VARIABLE: &str = "STEPFAST_CRASH_EXECUTIONS";
/// After how many ends it shuts down in good order, with the rest under way.
pub const SHUTDOWN_AFTER_VARIABLE: &str = "STEPFAST_CRASH_LEAVE";

/// Children that a root has: two side by side, and one started before it is awaited.
pub const CHILDREN: usize = 3;

/// One in so many executions has a value of several chunks; one in so many starts is cancelled.
const RARE_INTERVAL: u32 = 7;

/// Runs the victim if this process was started to be one.
pub fn run_if_requested() -> bool {
    let Ok(url) = std::env::var(URL_VARIABLE) else { return false };
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        // one line is one write: it is in the pipe even if the next instruction is the last
        let ear: LineSink = Arc::new(|line: &str| {
            std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).unwrap();
        });
        let store = stepfast::connect(&url).await.unwrap();
        run_executions(store, ear, number(EXECUTIONS_VARIABLE).unwrap_or(10), number(SHUTDOWN_AFTER_VARIABLE)).await;
    });
    true
}

/// Starts all executions and waits for them; tells `all` when that is done and the engine is shut down, or
/// `left` if it left before.
pub async fn run_executions(store: Arc<dyn Store>, ear: LineSink, executions: u32, leave: Option<u32>) {
    let cast = CrashWorkflows::new(ear.clone());
    let engine = cast.open_engine(store).await.unwrap();
    let (ends, leaving) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let mut tasks = Vec::new();
    for n in 0..executions {
        if n.is_multiple_of(RARE_INTERVAL) {
            let (engine, ear, patient) = (engine.clone(), ear.clone(), cast.long_parent.clone());
            let called = is_busy(n).then(|| cast.working.subscribe());
            tasks.push(tokio::spawn(async move { start_and_cancel(&engine, &ear, &patient, n, called).await }));
        }
        let (engine, ear, root) = (engine.clone(), ear.clone(), cast.root.clone());
        let (ends, leaving) = (ends.clone(), leaving.clone());
        tasks.push(tokio::spawn(async move {
            let id = format!("w-{n}");
            let handle = engine.start(&root, n).workflow_id(id.as_str()).await?;
            ear(&format!("started {id}"));
            let output = handle.result().await?;
            ear(&format!("ended {id} {output}"));
            if Some(ends.fetch_add(1, SeqCst) + 1) == leave {
                leaving.notify_one();
            }
            Ok::<_, Error>(())
        }));
    }
    let all = async {
        for task in tasks {
            match task.await.unwrap() {
                Ok(()) | Err(Error::Shutdown) => {}
                Err(error) => panic!("{error}"),
            }
        }
        wait_for_rest(&engine).await;
    };
    let is_all = tokio::select! {
        () = all => true,
        () = leaving.notified() => false,
    };
    engine.shutdown(Duration::from_secs(10)).await.unwrap();
    ear(if is_all { "all" } else { "left" });
}

/// Waits for what none of the others has waited for: the child of a cancelled execution may end after it, and late if it
/// has come into quarantine.
async fn wait_for_rest(engine: &Engine) {
    let filter = Filter { is_parked: Some(false), ..leftovers::unended() };
    loop {
        let going = engine.list(&filter).await.unwrap().executions;
        if going.is_empty() {
            return;
        }
        for execution in going {
            let handle = engine.get::<String>(&execution.workflow_id()).await.unwrap();
            let _ = handle.result().await;
        }
    }
}

/// True for a patient that works, as its child does: it is cancelled in the middle of that.
fn is_busy(n: u32) -> bool {
    n.is_multiple_of(2 * RARE_INTERVAL)
}

/// Starts an execution that would take an hour, and cancels it: at once, or while its child works.
async fn start_and_cancel(
    engine: &Engine,
    ear: &LineSink,
    patient: &Workflow<u32, String>,
    n: u32,
    called: Option<watch::Receiver<BTreeSet<u32>>>,
) -> Result<(), Error> {
    let id = format!("p-{n}");
    let handle = engine.start(patient, n).workflow_id(id.as_str()).await?;
    ear(&format!("started {id}"));
    if let Some(mut called) = called {
        // not before the lease of an earlier life has run out
        let patience = Duration::from_secs(1);
        let _ = tokio::time::timeout(patience, called.wait_for(|called| called.contains(&n))).await;
    }
    match engine.cancel(&id).await? {
        RequestResult::Done => ear(&format!("cancelled {id}")),
        RequestResult::Pending | RequestResult::NotApplicable(_) => ear(&format!("asked {id}")),
    }
    match handle.result().await {
        Err(error @ Error::Shutdown) => Err(error),
        Err(_) => {
            ear(&format!("cancelled {id}"));
            Ok(())
        }
        Ok(output) => panic!("{id} was cancelled, and ended with {output:?}"),
    }
}

/// What the root workflow of number `n` comes to.
pub fn root_output(n: u32) -> String {
    let steps = ["row0", "row1", "row2", "flaky", "side0", "side1", "side2", "side3", "one", "one", "one"];
    let mut all: Vec<String> = steps.iter().map(|step| format!("{step} done")).collect();
    all.push(medium_length(n).to_string());
    all.push(large_length(n).to_string());
    all.join(",")
}

/// The length of a value that stands in the row that refers to it, or aside in pieces.
fn medium_length(n: u32) -> usize {
    (n as usize % 40) * 150
}

fn large_length(n: u32) -> usize {
    if n % RARE_INTERVAL == 3 { 2_400_000 } else { 100_000 }
}

/// A step's body: tells that it runs, and is over after its task has been polled twice.
async fn run_body(ear: &LineSink, me: &str, step: &str, cause: &str) -> Result<String, Failure> {
    ear(&format!("body {} {me} {step} {cause}", SystemClock.now().as_micros()));
    tokio::task::yield_now().await;
    Ok(format!("{step} done"))
}

/// The workflows, with somebody who listens to their bodies.
pub struct CrashWorkflows {
    root: Workflow<u32, String>,
    child: Workflow<u32, String>,
    long_parent: Workflow<u32, String>,
    long_child: Workflow<u32, String>,
    /// The patients whose child works.
    working: watch::Sender<BTreeSet<u32>>,
}

impl CrashWorkflows {
    /// Workflows that tell `ear` which bodies begin.
    pub fn new(ear: LineSink) -> Self {
        let child = child_workflow(ear.clone());
        let working: watch::Sender<BTreeSet<u32>> = watch::Sender::default();
        let calling = working.clone();
        let long_child = Workflow::new("hour", move |mut cx: Context, n: u32| {
            let calling = calling.clone();
            async move {
                if is_busy(n) {
                    cx.step("work", async || {
                        calling.send_modify(|called| {
                            called.insert(n);
                        });
                        std::future::pending::<Result<(), Failure>>().await
                    })
                    .await?;
                }
                cx.sleep(Duration::from_hours(1)).await;
                Ok::<_, Failure>("an hour".to_owned())
            }
        });
        let awaited = long_child.clone();
        let told = ear.clone();
        let long_parent = Workflow::new("patient", move |mut cx: Context, n: u32| {
            let (hour, ear) = (awaited.clone(), told.clone());
            async move {
                let me = cx.execution_key();
                cx.step("one", || run_body(&ear, &me, "one", "-")).await?;
                if !is_busy(n) {
                    return cx.child(&hour, n).await;
                }
                // it stays in memory, and so it is its own code that ends with its child
                let work = std::future::pending::<Result<(), Failure>>;
                let both = cx.join(
                    |mut cx: Context| async move { cx.child(&hour, n).await },
                    |mut cx: Context| async move { cx.step("work", work).await },
                );
                both.await.0
            }
        });
        Self { root: root_workflow(ear, child.clone()), child, long_parent, long_child, working }
    }

    /// An engine that runs them.
    pub async fn open_engine(&self, store: Arc<dyn Store>) -> Result<Engine, Error> {
        Engine::builder(store)
            .register(&self.root)
            .register(&self.child)
            .register(&self.long_parent)
            .register(&self.long_child)
            .suspend_after(Duration::from_millis(20))
            .open()
            .await
    }
}

fn child_workflow(ear: LineSink) -> Workflow<u32, String> {
    Workflow::new("child", move |mut cx: Context, n: u32| {
        let ear = ear.clone();
        async move {
            let me = cx.execution_key();
            let one = cx.step("one", || run_body(&ear, &me, "one", "-")).await?;
            if n.is_multiple_of(3) {
                cx.sleep(Duration::from_millis(30)).await;
            }
            Ok::<_, Failure>(one)
        }
    })
}

/// Steps in a row and side by side, failing attempts, children, short and long waits, large values.
fn root_workflow(ear: LineSink, child: Workflow<u32, String>) -> Workflow<u32, String> {
    Workflow::new("root", move |mut cx: Context, n: u32| {
        let (child, ear) = (child.clone(), ear.clone());
        async move {
            let me = cx.execution_key();
            let mut all = Vec::new();
            let mut last = "-".to_owned();
            for i in 0..3 {
                let step = format!("row{i}");
                all.push(cx.step("row", || run_body(&ear, &me, &step, &last)).args(&i).await?);
                last = step;
            }
            let tries = AtomicU32::new(0);
            let flaky = cx
                .step("flaky", async || {
                    if tries.fetch_add(1, SeqCst) == 0 {
                        return Err(Failure::new("not yet ".repeat(medium_length(n) / 8)));
                    }
                    run_body(&ear, &me, "flaky", "row2").await
                })
                .retries(9)
                .backoff(Duration::from_millis(1), Duration::from_millis(2));
            all.push(flaky.await?);
            let side = cx
                .map(0..4u32, 2, |mut cx, i| {
                    let (ear, me, step) = (ear.clone(), me.clone(), format!("side{i}"));
                    async move { cx.step("side", || run_body(&ear, &me, &step, "flaky")).await }
                })
                .await;
            all.extend(side.into_iter().collect::<Result<Vec<_>, _>>()?);
            let early = cx.start_child(&child, n + 2).await?;
            let (one, two) = (child.clone(), child.clone());
            let (first, second) = cx
                .join(
                    |mut cx: Context| async move { cx.child(&one, n).await },
                    |mut cx: Context| async move { cx.child(&two, n + 1).await },
                )
                .await;
            all.extend([first?, second?]);
            all.push(early.result(&mut cx).await?);
            // beyond what the engine keeps in memory: the execution suspends
            cx.sleep(Duration::from_millis(if n.is_multiple_of(2) { 60 } else { 5 })).await;
            let medium = cx.step("medium", async || Ok::<_, Failure>("x".repeat(medium_length(n)))).await?;
            all.push(medium.len().to_string());
            let large = cx.step("large", async || Ok::<_, Failure>("x".repeat(large_length(n)))).await?;
            all.push(large.len().to_string());
            Ok::<_, Failure>(all.join(","))
        }
    })
}
