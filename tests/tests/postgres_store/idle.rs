//! Queues that have nothing to do cost nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use stepfast_core::queue::{Queue, QueueChange, Placement};
use stepfast_core::store::{Move, Start, Status, Write};
use stepfast_core::{Key, Store};

use super::proxy::Proxy;
use super::support::*;

fn ticket(queue: &str) -> Arc<Placement> {
    Arc::new(Placement { queue: queue.into(), key: "".into(), priority: 0 })
}

impl Fixture {
    /// Puts an execution into each, takes them, and ends them.
    async fn one_through(&self, queues: &[String]) {
        let tickets: Vec<(Key, Arc<Placement>)> = queues.iter().map(|it| (Key::mint(0), ticket(it))).collect();
        let start = |(key, ticket): &(Key, Arc<Placement>)| {
            Write::Start(Box::new(Start { placement: Some(ticket.clone()), ..start_of(*key, QUEUED) }))
        };
        self.write(tickets.iter().map(start).collect()).await;
        assert_eq!(self.take(100).await.len(), queues.len());
        let end = |(key, ticket): &(Key, Arc<Placement>)| {
            Write::Transition(Move { key: *key, ticket: Some(ticket.clone()), state: ended(Status::Completed) })
        };
        self.write(tickets.iter().map(end).collect()).await;
    }
}

/// How many statements a worker needs for ten seconds in which nothing comes, and then for one execution of the first
/// queue, where there are so many queues, all of which have been used.
async fn statements(queues: usize, limit: fn(Queue) -> Queue) -> (u64, u64) {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let names: Vec<String> = (0..queues).map(|n| format!("queue {n}")).collect();
    for name in &names {
        let change =
            QueueChange { queue: limit(Queue::new(name.as_str())), is_paused: false, expected_version: 0 };
        db.store.change_queue(&change).await.unwrap().unwrap();
    }
    db.one_through(&names).await;
    let asked = || proxy.faults.statements.load(SeqCst);
    let begun = asked();
    for _ in 0..10 {
        db.clock.advance(Duration::from_secs(1));
        db.look().await;
        assert!(db.take(100).await.is_empty());
    }
    let idle = asked() - begun;
    db.one_through(&names[..1]).await;
    (idle, asked() - begun - idle)
}

#[tokio::test]
async fn hundred_idle_queues_cost_no_more_statements_than_one() {
    for limit in [|queue: Queue| queue, |queue: Queue| queue.concurrency(5).key_concurrency(1)] {
        let one = statements(1, limit).await;
        assert!(one.0 >= 20 && one.1 >= 10, "the proxy counts: {one:?}");
        assert_eq!(statements(100, limit).await, one);
    }
}
