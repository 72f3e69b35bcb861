//! What the cases share: engines on a fixture, latches, and small workflows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{CheckpointKind, Execution, Record, State, Write};
use stepfast_core::{Context, Engine, EngineBuilder, Failure, Store, Workflow};
use tokio::sync::watch;

use crate::StoreFixture;
use crate::faults::fault_store::FaultStore;

/// What workflows and bodies return here.
pub type Returns<T> = Result<T, Failure>;

/// How long shutting down may take.
pub const GRACE: Duration = Duration::from_secs(20);

/// An engine on the fixture's first handle, and the store between them.
pub async fn engine(
    fixture: &dyn StoreFixture,
    with: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> (Engine, Arc<FaultStore>) {
    engine_on(fixture.store(), with).await
}

/// An engine on a second handle, as another process has one.
pub async fn second_engine(
    fixture: &dyn StoreFixture,
    with: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> (Engine, Arc<FaultStore>) {
    engine_on(fixture.second_store().await, with).await
}

/// An engine on `store`, with a place for faults between them.
pub async fn engine_on(
    store: Arc<dyn Store>,
    with: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> (Engine, Arc<FaultStore>) {
    let store = FaultStore::wrap(store);
    (open(store.clone(), with).await, store)
}

/// An engine on this very store.
pub async fn open(store: Arc<dyn Store>, with: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Engine {
    with(Engine::builder(store)).open().await.unwrap()
}

/// Ends an engine, which must not have to wait for what will never come.
pub async fn shut_down(engine: Engine) {
    let began = tokio::time::Instant::now();
    engine.shutdown(GRACE).await.unwrap();
    assert!(
        began.elapsed() < GRACE,
        "shut down only by force: {} still run, {:?}",
        engine.running_count(),
        engine.lane_load()
    );
    assert_eq!(engine.running_count(), 0);
}

/// Opens once; whoever waits for that goes on.
#[derive(Clone)]
pub struct Latch(Arc<watch::Sender<bool>>);

impl Latch {
    /// A closed one.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Opens it.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub async fn passed(&self) {
        self.0.subscribe().wait_for(|is_open| *is_open).await.unwrap();
    }

    /// True if it is open.
    pub fn is_open(&self) -> bool {
        *self.0.borrow()
    }
}

impl Default for Latch {
    fn default() -> Self {
        Self::new()
    }
}

/// Counts, and lets others wait for a count.
#[derive(Clone)]
pub struct Count(Arc<watch::Sender<usize>>);

impl Count {
    /// None so far.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// One more; returns how many that makes.
    pub fn more(&self) -> usize {
        let mut now = 0;
        self.0.send_modify(|count| {
            *count += 1;
            now = *count;
        });
        now
    }

    /// One less.
    pub fn less(&self) {
        self.0.send_modify(|count| *count -= 1);
    }

    /// How many.
    pub fn get(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until there are at least `count`.
    pub async fn reaches(&self, count: usize) {
        self.0.subscribe().wait_for(|now| *now >= count).await.unwrap();
    }
}

impl Default for Count {
    fn default() -> Self {
        Self::new()
    }
}

/// A number that nobody else gets.
pub fn fresh_number() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    LAST.fetch_add(1, SeqCst) + 1
}

/// The workflow `noop`, which returns its input.
pub fn noop() -> Workflow<i64, i64> {
    Workflow::new("noop", |_cx: Context, x: i64| async move { Returns::Ok(x) })
}

/// The workflow `steps`: so many steps, each with the value of a fresh number; returns the values.
pub fn steps() -> Workflow<usize, Vec<usize>> {
    Workflow::new("steps", |mut cx: Context, n: usize| async move {
        let mut values = Vec::new();
        for i in 0..n {
            values.push(cx.step(format!("step {i}"), async || Returns::Ok(fresh_number())).await?);
        }
        Returns::Ok(values)
    })
}

/// The workflow `sleeper`, which sleeps for so many milliseconds; then comes a step.
pub fn sleeper() -> Workflow<u64, ()> {
    Workflow::new("sleeper", |mut cx: Context, millis: u64| async move {
        cx.sleep(Duration::from_millis(millis)).await;
        cx.step("after", async || Returns::Ok(())).await
    })
}

/// A workflow with one step `wait`, whose body counts, then waits for the latch.
pub fn waiting(name: &str, count: &Count, latch: &Latch) -> Workflow<i64, i64> {
    let (count, latch) = (count.clone(), latch.clone());
    Workflow::new(name, move |mut cx: Context, x: i64| {
        let (count, latch) = (count.clone(), latch.clone());
        async move {
            cx.step("wait", || {
                let (count, latch) = (count.clone(), latch.clone());
                async move {
                    count.more();
                    latch.passed().await;
                    Returns::Ok(x)
                }
            })
            .await
        }
    })
}

/// True for the end of this execution.
pub fn ends(key: Key) -> impl Fn(&Write) -> bool {
    move |write| match write {
        Write::Transition(change) => change.key == key && matches!(change.state, State::Ended { .. }),
        Write::Start(start) => start.key == key && matches!(start.state, State::Ended { .. }),
        _ => false,
    }
}

/// True for the suspension of this execution.
pub fn suspends(key: Key) -> impl Fn(&Write) -> bool {
    move |write| match write {
        Write::Transition(change) => change.key == key && matches!(change.state, State::Waiting { .. }),
        Write::Start(start) => start.key == key && matches!(start.state, State::Waiting { .. }),
        _ => false,
    }
}

/// True if this execution is parked.
pub fn parks(key: Key) -> impl Fn(&Write) -> bool {
    move |write| match write {
        Write::Transition(change) => change.key == key && matches!(change.state, State::Parked { .. }),
        _ => false,
    }
}

/// What is recorded of an execution. Its deliveries are numbered without gaps.
pub async fn record(engine: &Engine, workflow_id: &str) -> Record {
    let record = engine.show(workflow_id).await.unwrap();
    let orders: Vec<u32> = record.checkpoints.iter().map(|checkpoint| checkpoint.order).collect();
    let expected: Vec<u32> = (1..=orders.len() as u32).collect();
    assert_eq!(orders, expected, "deliveries are numbered without gaps");
    record
}

/// The row of an execution.
pub async fn row(engine: &Engine, workflow_id: &str) -> Execution {
    engine.show(workflow_id).await.unwrap().execution
}

/// The kinds and names of what was delivered, in order.
pub fn deliveries(record: &Record) -> Vec<(CheckpointKind, String)> {
    record.checkpoints.iter().map(|checkpoint| (checkpoint.kind, checkpoint.name.to_string())).collect()
}

/// Waits, in a body, for the latch: a place for an engine to be shut down at.
pub async fn stop_here(cx: &mut Context, count: &Count, latch: &Latch) -> Returns<()> {
    cx.step("stop", || {
        let (count, latch) = (count.clone(), latch.clone());
        async move {
            count.more();
            latch.passed().await;
            Returns::Ok(())
        }
    })
    .await
}
