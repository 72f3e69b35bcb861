//! Helpers that the cases share: engines on a fixture, latches, and small workflows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{CheckpointKind, Execution, Record, State, Write};
use stepfast_core::{Context, Engine, EngineBuilder, Failure, Store, Workflow};
use tokio::sync::watch;

use crate::StoreFixture;
use crate::faults::fault_store::FaultStore;

/// The result type of the workflows and bodies of the suite.
pub type BodyResult<T> = Result<T, Failure>;

/// The longest time that a shutdown may take.
pub const GRACE: Duration = Duration::from_secs(20);

/// Opens an engine on the fixture's first handle. Returns it with the store between them.
pub async fn open_engine(
    fixture: &dyn StoreFixture,
    with: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> (Engine, Arc<FaultStore>) {
    open_engine_on(fixture.store(), with).await
}

/// Opens an engine on a second handle, as another process does. Returns it with the store between them.
pub async fn open_second_engine(
    fixture: &dyn StoreFixture,
    with: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> (Engine, Arc<FaultStore>) {
    open_engine_on(fixture.second_store().await, with).await
}

/// Opens an engine on `store`, through a store that injects faults. Returns both.
pub async fn open_engine_on(
    store: Arc<dyn Store>,
    with: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> (Engine, Arc<FaultStore>) {
    let store = FaultStore::wrap(store);
    (open(store.clone(), with).await, store)
}

/// Opens an engine directly on `store`.
pub async fn open(store: Arc<dyn Store>, with: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Engine {
    with(Engine::builder(store)).open().await.unwrap()
}

/// Shuts down an engine, and asserts that it ends without force.
pub async fn shut_down(engine: Engine) {
    let began = tokio::time::Instant::now();
    engine.shutdown(GRACE).await.unwrap();
    assert!(
        began.elapsed() < GRACE,
        "the shutdown needed force: {} still run, {:?}",
        engine.running_count(),
        engine.lane_load()
    );
    assert_eq!(engine.running_count(), 0);
}

/// A latch that opens once and wakes all tasks that wait for it.
#[derive(Clone)]
pub struct Latch(Arc<watch::Sender<bool>>);

impl Latch {
    /// Returns a closed latch.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Opens the latch.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the latch is open.
    pub async fn wait(&self) {
        self.0.subscribe().wait_for(|is_open| *is_open).await.unwrap();
    }

    /// Returns whether the latch is open.
    pub fn is_open(&self) -> bool {
        *self.0.borrow()
    }
}

impl Default for Latch {
    fn default() -> Self {
        Self::new()
    }
}

/// A counter whose value other tasks can await.
#[derive(Clone)]
pub struct Count(Arc<watch::Sender<usize>>);

impl Count {
    /// Returns a counter of zero.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Increments the counter and returns its value.
    pub fn increment(&self) -> usize {
        let mut now = 0;
        self.0.send_modify(|count| {
            *count += 1;
            now = *count;
        });
        now
    }

    /// Decrements the counter.
    pub fn decrement(&self) {
        self.0.send_modify(|count| *count -= 1);
    }

    /// Returns the current value.
    pub fn get(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until the value is at least `count`.
    pub async fn wait_for(&self, count: usize) {
        self.0.subscribe().wait_for(|now| *now >= count).await.unwrap();
    }
}

impl Default for Count {
    fn default() -> Self {
        Self::new()
    }
}

/// The largest number of bodies that have run at a time.
#[derive(Clone, Default)]
pub struct Peak {
    begun: Count,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Peak {
    /// Counts a body that runs now. The body ends when at least `beside` bodies have begun.
    pub async fn count(&self, beside: usize) {
        self.most.fetch_max(self.running.fetch_add(1, SeqCst) + 1, SeqCst);
        self.begun.increment();
        self.begun.wait_for(beside).await;
        // others begin meanwhile, if no limit holds them back
        tokio::task::yield_now().await;
        self.running.fetch_sub(1, SeqCst);
    }

    /// Returns the largest number so far.
    pub fn get(&self) -> usize {
        self.most.load(SeqCst)
    }
}

/// Returns a number that is unique in the process.
pub fn fresh_number() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    LAST.fetch_add(1, SeqCst) + 1
}

/// Returns the workflow `noop`, which returns its input.
pub fn noop() -> Workflow<i64, i64> {
    Workflow::new("noop", |_cx: Context, x: i64| async move { BodyResult::Ok(x) })
}

/// Returns the workflow `steps`: its `n` steps each return a unique number, and its output is the list of them.
pub fn steps() -> Workflow<usize, Vec<usize>> {
    Workflow::new("steps", |mut cx: Context, n: usize| async move {
        let mut values = Vec::new();
        for i in 0..n {
            values.push(cx.step(format!("step {i}"), async || BodyResult::Ok(fresh_number())).await?);
        }
        BodyResult::Ok(values)
    })
}

/// Returns the workflow `sleeper`, which sleeps for the given milliseconds and then runs a step.
pub fn sleeper() -> Workflow<u64, ()> {
    Workflow::new("sleeper", |mut cx: Context, millis: u64| async move {
        cx.sleep(Duration::from_millis(millis)).await;
        cx.step("after", async || BodyResult::Ok(())).await
    })
}

/// Returns a workflow with one step `wait`, whose body increments `count` and waits for the latch.
pub fn latched_workflow(name: &str, count: &Count, latch: &Latch) -> Workflow<i64, i64> {
    let (count, latch) = (count.clone(), latch.clone());
    Workflow::new(name, move |mut cx: Context, x: i64| {
        let (count, latch) = (count.clone(), latch.clone());
        async move {
            cx.step("wait", || {
                let (count, latch) = (count.clone(), latch.clone());
                async move {
                    count.increment();
                    latch.wait().await;
                    BodyResult::Ok(x)
                }
            })
            .await
        }
    })
}

/// Returns a predicate for the end of this execution.
pub fn is_end_of(key: Key) -> impl Fn(&Write) -> bool {
    move |write| match write {
        Write::Transition(change) => change.key == key && matches!(change.state, State::Ended { .. }),
        Write::Start(start) => start.key == key && matches!(start.state, State::Ended { .. }),
        _ => false,
    }
}

/// Returns a predicate for the suspension of this execution.
pub fn is_suspension_of(key: Key) -> impl Fn(&Write) -> bool {
    move |write| match write {
        Write::Transition(change) => change.key == key && matches!(change.state, State::Waiting { .. }),
        Write::Start(start) => start.key == key && matches!(start.state, State::Waiting { .. }),
        _ => false,
    }
}

/// Returns a predicate for the parking of this execution.
pub fn is_parking_of(key: Key) -> impl Fn(&Write) -> bool {
    move |write| match write {
        Write::Transition(change) => change.key == key && matches!(change.state, State::Parked { .. }),
        _ => false,
    }
}

/// Loads the record of an execution, and asserts that its deliveries are numbered without gaps.
pub async fn record(engine: &Engine, workflow_id: &str) -> Record {
    let record = engine.show(workflow_id).await.unwrap();
    let orders: Vec<u32> = record.checkpoints.iter().map(|checkpoint| checkpoint.order).collect();
    let expected: Vec<u32> = (1..=orders.len() as u32).collect();
    assert_eq!(orders, expected, "deliveries are numbered without gaps");
    record
}

/// Loads the row of an execution.
pub async fn row(engine: &Engine, workflow_id: &str) -> Execution {
    engine.show(workflow_id).await.unwrap().execution
}

/// Returns the kinds and names of the deliveries, in order.
pub fn deliveries(record: &Record) -> Vec<(CheckpointKind, String)> {
    record.checkpoints.iter().map(|checkpoint| (checkpoint.kind, checkpoint.name.to_string())).collect()
}

/// Runs a step that increments `count` and waits for the latch: a point at which an engine can be shut down.
pub async fn wait_in_step(cx: &mut Context, count: &Count, latch: &Latch) -> BodyResult<()> {
    cx.step("stop", || {
        let (count, latch) = (count.clone(), latch.clone());
        async move {
            count.increment();
            latch.wait().await;
            BodyResult::Ok(())
        }
    })
    .await
}
