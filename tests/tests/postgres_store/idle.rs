//! Idle queues cost nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use stepfast_core::queue::{Placement, Queue, QueueChange};
use stepfast_core::store::{Start, Status, Transition, Write};
use stepfast_core::{Key, Store};

use super::proxy::Proxy;
use super::support::*;

fn placement(queue: &str) -> Arc<Placement> {
    Arc::new(Placement { queue: queue.into(), key: "".into(), priority: 0 })
}

impl Fixture {
    /// Puts an execution into each queue, claims them, and finishes them.
    async fn run_one_per_queue(&self, queues: &[String]) {
        let placements: Vec<(Key, Arc<Placement>)> =
            queues.iter().map(|it| (Key::mint(0), placement(it))).collect();
        let start = |(key, placement): &(Key, Arc<Placement>)| {
            Write::Start(Box::new(Start { placement: Some(placement.clone()), ..start_of(*key, QUEUED) }))
        };
        self.write(placements.iter().map(start).collect()).await;
        assert_eq!(self.take(100).await.len(), queues.len());
        let end = |(key, placement): &(Key, Arc<Placement>)| {
            Write::Transition(Transition {
                key: *key,
                placement: Some(placement.clone()),
                state: ended(Status::Completed),
            })
        };
        self.write(placements.iter().map(end).collect()).await;
    }
}

/// Returns the numbers of statements that a worker executes for ten idle seconds, and then for one execution of the
/// first queue, with `queues` queues that have all been used.
async fn count_statements(queues: usize, limit: fn(Queue) -> Queue) -> (u64, u64) {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let names: Vec<String> = (0..queues).map(|n| format!("queue {n}")).collect();
    for name in &names {
        let change =
            QueueChange { queue: limit(Queue::new(name.as_str())), is_paused: false, expected_version: 0 };
        db.store.change_queue(&change).await.unwrap().unwrap();
    }
    db.run_one_per_queue(&names).await;
    let executed = || proxy.faults.statements.load(SeqCst);
    let executed_before = executed();
    for _ in 0..10 {
        db.clock.advance(Duration::from_secs(1));
        db.heartbeat().await;
        assert!(db.take(100).await.is_empty());
    }
    let idle = executed() - executed_before;
    db.run_one_per_queue(&names[..1]).await;
    (idle, executed() - executed_before - idle)
}

#[tokio::test]
async fn hundred_idle_queues_cost_no_more_statements_than_one() {
    for limit in [|queue: Queue| queue, |queue: Queue| queue.concurrency(5).key_concurrency(1)] {
        let one = count_statements(1, limit).await;
        assert!(one.0 >= 20 && one.1 >= 10, "the proxy counts: {one:?}");
        assert_eq!(count_statements(100, limit).await, one);
    }
}
