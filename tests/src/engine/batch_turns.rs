//! The turns of batches: large batches leave room to other executions, to other batches and to other engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use stepfast_core::queue::Queue;
use stepfast_core::{Client, Context, Engine, EngineBuilder, Failure, Workflow};
use tokio::sync::Semaphore;

use super::support::{Count, GRACE, noop, open_engine, open_second_engine, shut_down};
use crate::StoreFixture;

super::cases![
    engines_share_a_batch,
    other_executions_begin_beside_a_batch,
    batches_take_turns,
    batches_of_one_queue_key_take_turns_in_order,
    claimed_items_are_bounded,
];

/// Slots of an engine: the items of batches may take three quarters of them.
const SLOTS: usize = 8;
/// Items in a batch that is too large for an engine.
const LARGE_BATCH_ITEMS: u32 = 5_000;

/// The items of a batch, which begin and then wait until the test lets one after the other end.
#[derive(Clone)]
struct Gate {
    begun: Count,
    /// The number of items of the second batch that have begun: their inputs are at least [`LARGE_BATCH_ITEMS`].
    second_begun: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { begun: Count::new(), second_begun: Arc::default(), permits: Arc::new(Semaphore::new(0)) }
    }

    fn workflow(&self) -> Workflow<u32, u32> {
        let gate = self.clone();
        Workflow::new("gated", move |_: Context, x: u32| {
            let gate = gate.clone();
            async move {
                if x >= LARGE_BATCH_ITEMS {
                    gate.second_begun.fetch_add(1, SeqCst);
                }
                gate.begun.increment();
                if let Ok(permit) = gate.permits.acquire().await {
                    permit.forget();
                }
                Ok::<_, Failure>(x)
            }
        })
    }

    /// Lets all items end.
    fn open(&self) {
        self.permits.close();
    }
}

/// Opens an engine with few slots for the items of batches.
async fn open_small(fixture: &dyn StoreFixture, gate: &Gate) -> Engine {
    let (engine, _) = open_engine(fixture, |b| small(b, gate)).await;
    engine
}

fn small(builder: EngineBuilder, gate: &Gate) -> EngineBuilder {
    builder.register(&gate.workflow()).register(&noop()).queue(Queue::new("shop")).max_running(SLOTS)
}

async fn engines_share_a_batch(fixture: &dyn StoreFixture) {
    let gates = [Gate::new(), Gate::new()];
    let first = open_small(fixture, &gates[0]).await;
    let batch = first.submit_batch(&gates[0].workflow(), 0..LARGE_BATCH_ITEMS).await.unwrap();
    gates[0].begun.wait_for(SLOTS * 3 / 4).await;
    let (second, _) = open_second_engine(fixture, |b| small(b, &gates[1])).await;
    gates[1].begun.wait_for(SLOTS * 3 / 4).await;
    gates.iter().for_each(Gate::open);
    assert_eq!(batch.wait().await.unwrap().ended.completed, u64::from(LARGE_BATCH_ITEMS));
    let begun = gates.each_ref().map(|gate| gate.begun.get());
    assert_eq!(begun.iter().sum::<usize>(), LARGE_BATCH_ITEMS as usize, "each item began once: {begun:?}");
    shut_down(first).await;
    shut_down(second).await;
}

async fn other_executions_begin_beside_a_batch(fixture: &dyn StoreFixture) {
    let gate = Gate::new();
    let engine = open_small(fixture, &gate).await;
    let batch = engine.submit_batch(&gate.workflow(), 0..LARGE_BATCH_ITEMS).await.unwrap();
    let in_queue = engine.submit_batch(&gate.workflow(), 0..LARGE_BATCH_ITEMS).queue("shop").await.unwrap();
    gate.begun.wait_for(SLOTS * 3 / 4).await;
    for x in 0..10 {
        assert_eq!(engine.start(&noop(), x).await.unwrap().result().await.unwrap(), x);
        assert_eq!(engine.start(&noop(), x).queue("shop").await.unwrap().result().await.unwrap(), x);
    }
    // executions from elsewhere are queued, and do not wait behind the bundles
    let client = Client::open(fixture.second_store().await).await.unwrap();
    assert_eq!(client.start(&noop(), 10).await.unwrap().result().await.unwrap(), 10);
    assert_eq!(client.start(&noop(), 11).queue("shop").await.unwrap().result().await.unwrap(), 11);
    client.shutdown(GRACE).await.unwrap();
    assert!(gate.begun.get() <= SLOTS, "no item has ended");
    gate.open();
    for batch in [batch, in_queue] {
        assert_eq!(batch.wait().await.unwrap().ended.completed, u64::from(LARGE_BATCH_ITEMS));
    }
    shut_down(engine).await;
}

/// Submits a batch that is too large for the engine, and then a small one. The small one must begin while few items of the
/// large one end.
async fn check_turns(fixture: &dyn StoreFixture, keys: Option<[&str; 2]>) {
    let gate = Gate::new();
    let engine = open_small(fixture, &gate).await;
    let workflow = gate.workflow();
    let submit = |inputs: std::ops::Range<u32>, n: usize| {
        let batch = engine.submit_batch(&workflow, inputs);
        match keys {
            Some(keys) => batch.queue("shop").key(keys[n]),
            None => batch,
        }
    };
    let large = submit(0..LARGE_BATCH_ITEMS, 0).await.unwrap();
    gate.begun.wait_for(SLOTS * 3 / 4).await;
    let small = submit(LARGE_BATCH_ITEMS..LARGE_BATCH_ITEMS + 10, 1).await.unwrap();
    // about each second item to begin belongs to the second batch; tasks may be late
    let (mut ended, mut ended_since) = (0, 0);
    while gate.second_begun.load(SeqCst) < 10 {
        ended += 1;
        ended_since += usize::from(gate.second_begun.load(SeqCst) > 0);
        assert!(ended_since < 400, "the second batch does not continue");
        gate.permits.add_permits(1);
        gate.begun.wait_for(SLOTS * 3 / 4 + ended).await;
    }
    let others = gate.begun.get() - 10;
    assert!(others < LARGE_BATCH_ITEMS as usize, "the second batch began after the first one");
    gate.open();
    assert_eq!(small.wait().await.unwrap().ended.completed, 10);
    assert_eq!(large.wait().await.unwrap().ended.completed, u64::from(LARGE_BATCH_ITEMS));
    shut_down(engine).await;
}

async fn batches_take_turns(fixture: &dyn StoreFixture) {
    check_turns(fixture, None).await;
    check_turns(fixture, Some(["ann", "bob"])).await;
}

async fn batches_of_one_queue_key_take_turns_in_order(fixture: &dyn StoreFixture) {
    let gate = Gate::new();
    let engine = open_small(fixture, &gate).await;
    let workflow = gate.workflow();
    let submit =
        |inputs: std::ops::Range<u32>| engine.submit_batch(&workflow, inputs).queue("shop").key("ann");
    let large = submit(0..1_500).await.unwrap();
    gate.begun.wait_for(SLOTS * 3 / 4).await;
    let small = submit(LARGE_BATCH_ITEMS..LARGE_BATCH_ITEMS + 10).await.unwrap();
    gate.permits.add_permits(100);
    gate.begun.wait_for(SLOTS * 3 / 4 + 100).await;
    assert_eq!(gate.second_begun.load(SeqCst), 0, "the first batch of the key comes first");
    gate.open();
    assert_eq!(small.wait().await.unwrap().ended.completed, 10);
    assert_eq!(large.wait().await.unwrap().ended.completed, 1_500);
    shut_down(engine).await;
}

async fn claimed_items_are_bounded(fixture: &dyn StoreFixture) {
    let gate = Gate::new();
    let engine = open_small(fixture, &gate).await;
    let batch = engine.submit_batch(&gate.workflow(), 0..LARGE_BATCH_ITEMS).await.unwrap();
    gate.begun.wait_for(SLOTS * 3 / 4).await;
    // an execution that is claimed later shows that the engine has claimed what it claims
    engine.start(&noop(), 1).await.unwrap().result().await.unwrap();
    let counts = batch.counts().await.unwrap();
    assert!(counts.running <= 1_000, "one bundle is enough for a small engine: {counts:?}");
    assert_eq!(counts.running + counts.queued, u64::from(LARGE_BATCH_ITEMS));
    gate.open();
    batch.wait().await.unwrap();
    shut_down(engine).await;
}
