//! Queues: limits across engines, fairness, pauses, and the queues that an engine serves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::{DEFAULT_QUEUE, OnConflict, OnDuplicate, OnFull, Queue};
use stepfast_core::store::Status;
use stepfast_core::{Context, Engine, Error, Workflow};

use super::support::{
    BodyResult, Count, Latch, latched_workflow, noop, open, open_engine, open_second_engine, row, shut_down,
    sleeper,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    queued_start_runs,
    unknown_queue_is_rejected,
    queued_start_waits_for_the_database,
    concurrency_limit_holds_across_engines,
    key_concurrency_limit_holds_and_keeps_the_order,
    worker_concurrency_limit_holds,
    suspended_execution_holds_no_slot,
    paused_queue_waits_until_it_is_resumed,
    raised_limit_applies_at_once,
    queue_runs_only_on_engines_that_serve_it,
    slots_of_a_dead_engine_are_freed_by_its_takeover,
    declared_limits_follow_the_conflict_policy,
    urgent_executions_run_first,
    delayed_execution_begins_when_due,
    rate_limit_holds_across_engines,
    dedup_id_admits_one_execution_at_a_time,
    full_queue_rejects_or_delays_starts,
    start_many_starts_every_input,
    debounced_execution_begins_once_with_the_last_input,
    waiting_start_enters_the_queue_after_a_cancel,
    run_timeout_begins_with_the_execution,
];

/// The number of concurrent executions by key, and its maximum.
#[derive(Clone, Default)]
struct Gauge(Arc<Mutex<HashMap<String, Measured>>>);

#[derive(Clone, Default)]
struct Measured {
    current: usize,
    highest: usize,
    order: Vec<i64>,
}

impl Gauge {
    fn enter(&self, key: &str, x: i64) {
        let mut all = self.0.lock().unwrap();
        let entry = all.entry(key.to_owned()).or_default();
        entry.current += 1;
        entry.highest = entry.highest.max(entry.current);
        entry.order.push(x);
    }

    fn leave(&self, key: &str) {
        self.0.lock().unwrap().get_mut(key).unwrap().current -= 1;
    }

    fn highest(&self, key: &str) -> usize {
        self.0.lock().unwrap().get(key).map_or(0, |entry| entry.highest)
    }

    fn order(&self, key: &str) -> Vec<i64> {
        self.0.lock().unwrap().get(key).map(|entry| entry.order.clone()).unwrap_or_default()
    }
}

/// Returns a workflow with one step that is measured under the key in its input.
fn measured(gauge: &Gauge) -> Workflow<(String, i64), i64> {
    let gauge = gauge.clone();
    Workflow::new("measured", move |mut cx: Context, (key, x): (String, i64)| {
        let gauge = gauge.clone();
        async move {
            cx.step("run", || {
                let (gauge, key) = (gauge.clone(), key.clone());
                async move {
                    gauge.enter(&key, x);
                    // other executions have a chance to exceed a limit
                    for _ in 0..20 {
                        tokio::task::yield_now().await;
                    }
                    gauge.leave(&key);
                    BodyResult::Ok(x)
                }
            })
            .await
        }
    })
}

async fn queued_start_runs(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a"))).await;
    let handle = one.start(&workflow, 7).queue("a").key("k").priority(2).workflow_id("x").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 7);
    let placement = row(&one, "x").await.placement.unwrap();
    assert_eq!((&*placement.queue, &*placement.key, placement.priority), ("a", "k", 2));
    assert_eq!(one.run(&workflow, 8).queue("a").await.unwrap(), 8);
    // a second Start of the id attaches, as for every Start
    assert_eq!(one.start(&workflow, 7).queue("a").workflow_id("x").await.unwrap().result().await.unwrap(), 7);
    let all = join_all((0..500).map(|x| one.run(&workflow, x).queue("a").into_future())).await;
    assert_eq!(all.into_iter().map(Result::unwrap).collect::<Vec<_>>(), (0..500).collect::<Vec<_>>());
    shut_down(one).await;
}

async fn unknown_queue_is_rejected(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a"))).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let error = one.start(&workflow, 1).queue("b").await.unwrap_err();
    assert!(matches!(&error, Error::UnknownQueue { name, known } if name == "b" && known == "a"), "{error}");
    for (start, expected) in [
        (one.start(&workflow, 1).queue(DEFAULT_QUEUE), "leave `queue` out"),
        (one.start(&workflow, 1).queue(""), "must not be empty"),
        (one.start(&workflow, 1).key("k"), "needs a queue"),
        (one.start(&workflow, 1).priority(1), "needs a queue"),
        (one.start(&workflow, 1).dedup_id("x"), "needs a queue"),
        (one.start(&workflow, 1).queue("a").dedup_id(""), "must not be empty"),
        (one.start(&workflow, 1).queue("a").key("a\nb"), "control character"),
    ] {
        let error = start.await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    // another engine sees the declaration of this one
    two.set_queue(&Queue::new("b")).await.unwrap();
    assert_eq!(one.run(&workflow, 1).queue("b").await.unwrap(), 1);
    let error = two.pause_queue("c").await.unwrap_err();
    assert!(matches!(error, Error::UnknownQueue { .. }), "{error}");
    assert!(one.set_queue(&Queue::new("d").concurrency(0)).await.is_err());
    let names: Vec<_> = one.queues().await.unwrap().into_iter().map(|row| row.queue.name).collect();
    assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), ["a", "b"]);
    shut_down(one).await;
    shut_down(two).await;
}

async fn queued_start_waits_for_the_database(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a"))).await;
    // as in a new process: this engine has not started anything in the queue yet
    let (two, store) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    store.make_unavailable(&[Call::Queues]);
    let error = two.start(&workflow, 1).queue("a").wait_timeout(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.code(), "SF-0011", "{error}");
    assert!(error.to_string().contains("within 50ms"), "{error}");
    let waiting_start = {
        let (two, workflow) = (two.clone(), workflow.clone());
        tokio::spawn(async move { two.start(&workflow, 2).queue("a").await?.result().await })
    };
    store.wait_until_called(Call::Queues, store.call_count(Call::Queues) + 2).await;
    assert!(!waiting_start.is_finished());
    store.make_unavailable(&[]);
    assert_eq!(waiting_start.await.unwrap().unwrap(), 2);
    shut_down(one).await;
    shut_down(two).await;
}

async fn concurrency_limit_holds_across_engines(fixture: &dyn StoreFixture) {
    let gauge = Gauge::default();
    let workflow = measured(&gauge);
    let queue = || Queue::new("a").concurrency(3);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let started = (0..120).map(|x| {
        let engine = if x % 2 == 0 { &one } else { &two };
        engine.run(&workflow, (String::new(), x)).queue("a").into_future()
    });
    for (x, result) in (0..).zip(join_all(started).await) {
        assert_eq!(result.unwrap(), x);
    }
    assert!(gauge.highest("") <= 3, "{} ran at once", gauge.highest(""));
    shut_down(one).await;
    shut_down(two).await;
}

async fn key_concurrency_limit_holds_and_keeps_the_order(fixture: &dyn StoreFixture) {
    let gauge = Gauge::default();
    let workflow = measured(&gauge);
    let queue = || Queue::new("a").key_concurrency(1);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let mut handles = Vec::new();
    for x in 0..60 {
        let key = format!("k{}", x % 3);
        handles.push(one.start(&workflow, (key.clone(), x)).queue("a").key(&key).await.unwrap());
    }
    for handle in handles {
        handle.result().await.unwrap();
    }
    for k in 0..3 {
        let key = format!("k{k}");
        assert_eq!(gauge.highest(&key), 1, "{key}");
        assert_eq!(gauge.order(&key), (0..20).map(|n| n * 3 + k).collect::<Vec<i64>>(), "{key}");
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn worker_concurrency_limit_holds(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let queue = || Queue::new("a").worker_concurrency(2);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let mut handles = Vec::new();
    for x in 0..5 {
        handles.push(one.start(&workflow, x).queue("a").await.unwrap());
    }
    count.wait_for(2).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    count.wait_for(4).await;
    assert_eq!((one.running_count(), two.running_count()), (2, 2));
    latch.open();
    for handle in handles {
        handle.result().await.unwrap();
    }
    assert_eq!(count.get(), 5);
    shut_down(one).await;
    shut_down(two).await;
}

async fn suspended_execution_holds_no_slot(fixture: &dyn StoreFixture) {
    let (sleeper, noop) = (sleeper(), noop());
    let queue = || Queue::new("a").concurrency(1);
    let (one, _) = open_engine(fixture, |b| {
        b.register(&sleeper).register(&noop).queue(queue()).suspend_after(Duration::from_millis(1))
    })
    .await;
    let sleeping = one.start(&sleeper, 3_600_000).queue("a").workflow_id("x").await.unwrap();
    assert_eq!(one.run(&noop, 1).queue("a").await.unwrap(), 1);
    assert_eq!(row(&one, "x").await.status, Status::Waiting);
    fixture.clock().advance(Duration::from_hours(2));
    sleeping.result().await.unwrap();
    assert_eq!(one.run(&noop, 2).queue("a").await.unwrap(), 2, "a slot of the sleeper was not freed");
    shut_down(one).await;
}

async fn paused_queue_waits_until_it_is_resumed(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a"))).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    assert!(two.pause_queue("a").await.unwrap().is_paused);
    let handle = one.start(&workflow, 1).queue("a").await.unwrap();
    assert_eq!(one.run(&workflow, 2).await.unwrap(), 2, "executions of other queues run");
    assert_eq!(handle.status().await.unwrap(), Status::Queued);
    // a declaration in code does not resume the queue
    shut_down(one).await;
    let (one, _) =
        open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a").concurrency(2))).await;
    assert!(one.queues().await.unwrap()[0].is_paused);
    assert!(!two.resume_queue("a").await.unwrap().is_paused);
    assert_eq!(one.get::<i64>(&handle.workflow_id()).await.unwrap().result().await.unwrap(), 1);
    shut_down(one).await;
    shut_down(two).await;
}

async fn raised_limit_applies_at_once(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) =
        open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a").concurrency(1))).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let mut handles = Vec::new();
    for x in 0..4 {
        handles.push(one.start(&workflow, x).queue("a").await.unwrap());
    }
    count.wait_for(1).await;
    assert_eq!(two.set_queue(&Queue::new("a").concurrency(3)).await.unwrap().version, 2);
    count.wait_for(3).await;
    one.set_queue(&Queue::new("a")).await.unwrap();
    count.wait_for(4).await;
    latch.open();
    for handle in handles {
        handle.result().await.unwrap();
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn queue_runs_only_on_engines_that_serve_it(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let with = |names: &'static [&'static str], engine: stepfast_core::EngineBuilder| {
        engine.register(&workflow).queue(Queue::new("a")).queue(Queue::new("b")).serve_queues(names)
    };
    let (one, _) = open_engine(fixture, |b| with(&["a"], b)).await;
    let (two, _) = open_second_engine(fixture, |b| with(&["b", DEFAULT_QUEUE], b)).await;
    let started: Vec<_> =
        join_all((0..6).map(|x| one.start(&workflow, x).queue(if x < 2 { "a" } else { "b" }).into_future()))
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
    count.wait_for(6).await;
    assert_eq!((one.running_count(), two.running_count()), (2, 4));
    latch.open();
    for handle in started {
        handle.result().await.unwrap();
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn slots_of_a_dead_engine_are_freed_by_its_takeover(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let queue = || Queue::new("a").concurrency(2);
    let (one, store) = open_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let mut handles = Vec::new();
    for x in 0..5 {
        handles.push(two.start(&workflow, x).queue("a").await.unwrap());
    }
    count.wait_for(2).await;
    fixture.mark_dead(store.workers()[0]).await;
    latch.open();
    for (x, handle) in (0..).zip(handles) {
        assert_eq!(handle.result().await.unwrap(), x);
    }
    // no slot stays taken: as many executions run as the limit admits
    let (other_count, other_latch) = (Count::new(), Latch::new());
    let other = latched_workflow("other", &other_count, &other_latch);
    let (three, _) = open_second_engine(fixture, |b| b.register(&other).queue(queue())).await;
    let started = join_all((0..3).map(|x| three.start(&other, x).queue("a").into_future())).await;
    other_count.wait_for(2).await;
    assert_eq!(three.running_count(), 2);
    other_latch.open();
    for handle in started {
        handle.unwrap().result().await.unwrap();
    }
    shut_down(one).await;
    shut_down(two).await;
    shut_down(three).await;
}

async fn declared_limits_follow_the_conflict_policy(fixture: &dyn StoreFixture) {
    let (one, _) = open_engine(fixture, |b| b.queue(Queue::new("a").concurrency(1))).await;
    let limit = async |engine: &Engine| engine.queues().await.unwrap()[0].queue.limits.concurrency;
    assert_eq!(limit(&one).await, Some(1));
    let declared = |limit, policy| {
        let store = fixture.store();
        async move {
            let queue = Queue::new("a").concurrency(limit);
            Engine::builder(store).declare_queue(queue, policy).open().await
        }
    };
    shut_down(declared(2, OnConflict::Keep).await.unwrap()).await;
    assert_eq!(limit(&one).await, Some(1));
    let error = declared(2, OnConflict::Reject).await.err().unwrap();
    assert!(matches!(&error, Error::QueueConflict { name } if name == "a"), "{error}");
    shut_down(declared(1, OnConflict::Reject).await.unwrap()).await;
    shut_down(declared(2, OnConflict::Update).await.unwrap()).await;
    assert_eq!(limit(&one).await, Some(2));
    let plain = open(fixture.store(), |b| b).await;
    let error = Engine::builder(fixture.store()).queue(Queue::new("")).open().await.err().unwrap();
    assert!(error.to_string().contains("queue name"), "{error}");
    let error = Engine::builder(fixture.store()).serve_queues([""]).open().await.err().unwrap();
    assert!(error.to_string().contains("queue name"), "{error}");
    shut_down(plain).await;
    shut_down(one).await;
}

async fn urgent_executions_run_first(fixture: &dyn StoreFixture) {
    let gauge = Gauge::default();
    let workflow = measured(&gauge);
    let (one, _) =
        open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a").concurrency(1))).await;
    one.pause_queue("a").await.unwrap();
    let mut handles = Vec::new();
    for (x, priority) in [(0, 5), (1, 0), (2, -7), (3, 5), (4, 0)] {
        handles.push(one.start(&workflow, (String::new(), x)).queue("a").priority(priority).await.unwrap());
    }
    one.resume_queue("a").await.unwrap();
    for handle in handles {
        handle.result().await.unwrap();
    }
    assert_eq!(gauge.order(""), [2, 1, 4, 0, 3]);
    shut_down(one).await;
}

async fn delayed_execution_begins_when_due(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (one, _) =
        open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a").concurrency(1))).await;
    let hour = Duration::from_hours(1);
    let plain = one.start(&workflow, 1).delay(hour).await.unwrap();
    let queued = one.start(&workflow, 2).queue("a").delay(hour).await.unwrap();
    let tomorrow = fixture.now().plus(Duration::from_hours(24));
    let later = one.start(&workflow, 3).queue("a").start_at(tomorrow).workflow_id("later").await.unwrap();
    let cancelled = one.start(&workflow, 4).delay(hour).await.unwrap();
    for handle in [&plain, &queued, &later, &cancelled] {
        assert_eq!(handle.status().await.unwrap(), Status::Scheduled);
    }
    cancelled.cancel().await.unwrap();
    // delayed executions do not block one that is due now, nor one that was due long ago
    assert_eq!(one.run(&workflow, 5).queue("a").await.unwrap(), 5);
    assert_eq!(one.run(&workflow, 6).start_at(fixture.now()).await.unwrap(), 6);
    fixture.clock().advance(hour);
    assert_eq!((plain.result().await.unwrap(), queued.result().await.unwrap()), (1, 2));
    assert!(matches!(cancelled.result().await, Err(Error::Cancelled(_))));
    assert_eq!(row(&one, "later").await.status, Status::Scheduled);
    shut_down(one).await;
    // an engine that is open at the due time runs the execution
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    fixture.clock().advance(hour * 24);
    assert_eq!(two.get::<i64>("later").await.unwrap().result().await.unwrap(), 3);
    shut_down(two).await;
}

async fn rate_limit_holds_across_engines(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let queue = || Queue::new("a").rate(Rate::new(2, Duration::from_hours(1)));
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow).queue(queue())).await;
    let mut handles = Vec::new();
    for x in 0..6 {
        handles.push(one.start(&workflow, x).queue("a").await.unwrap());
    }
    latch.open();
    for hour in 1..=3 {
        count.wait_for(hour * 2).await;
        assert_eq!(count.get(), hour * 2);
        fixture.clock().advance(Duration::from_hours(1));
    }
    for handle in handles {
        handle.result().await.unwrap();
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn dedup_id_admits_one_execution_at_a_time(fixture: &dyn StoreFixture) {
    let (noop, count, latch) = (noop(), Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) =
        open_engine(fixture, |b| b.register(&workflow).register(&noop).queue(Queue::new("a").concurrency(2)))
            .await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow).register(&noop)).await;
    let first = one.start(&workflow, 1).queue("a").key("k").dedup_id("x").workflow_id("first").await.unwrap();
    let error = two.start(&workflow, 2).queue("a").dedup_id("x").await.unwrap_err();
    let Error::Deduplicated { queue, dedup_id, workflow_id } = &error else { panic!("{error}") };
    assert_eq!((&**queue, &**dedup_id, &**workflow_id), ("a", "x", "first"));
    assert_eq!(row(&two, "first").await.dedup_id.as_deref(), Some("x"));
    let existing = OnDuplicate::ReturnExisting;
    let same = two.start(&workflow, 3).queue("a").dedup_id("x").on_duplicate(existing).await.unwrap();
    assert_eq!((same.key(), same.workflow_id()), (first.key(), "first".to_owned()));
    // the output of the existing execution has another type
    let error = two.start(&noop, 3).queue("a").dedup_id("x").on_duplicate(existing).await.unwrap_err();
    assert!(matches!(error, Error::Deduplicated { .. }), "{error}");
    // a repeated Start attaches, as for every Start
    let repeated =
        one.start(&workflow, 1).queue("a").key("k").dedup_id("x").workflow_id("first").await.unwrap();
    assert_eq!(repeated.key(), first.key());
    latch.open();
    assert_eq!((first.result().await.unwrap(), same.result().await.unwrap()), (1, 1));
    assert_eq!(two.run(&workflow, 4).queue("a").dedup_id("x").await.unwrap(), 4);
    // a Start whose competitor ends concurrently starts again, or returns the competitor
    let all = join_all((0..60).map(|x| {
        let engine = if x % 2 == 0 { &one } else { &two };
        engine.run(&noop, x).queue("a").dedup_id("y").on_duplicate(existing).into_future()
    }));
    assert!(all.await.into_iter().all(|output| output.is_ok()));
    assert_eq!(count.get(), 2);
    shut_down(one).await;
    shut_down(two).await;
}

async fn full_queue_rejects_or_delays_starts(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&noop).queue(Queue::new("a").max_depth(2))).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&noop).serve_queues([DEFAULT_QUEUE])).await;
    one.pause_queue("a").await.unwrap();
    let first = one.start(&noop, 1).queue("a").await.unwrap();
    let second = two.start(&noop, 2).queue("a").delay(Duration::from_millis(1)).await.unwrap();
    let assert_full =
        |error: Error| assert!(matches!(&error, Error::QueueFull { queue } if queue == "a"), "{error}");
    assert_full(one.start(&noop, 3).queue("a").workflow_id("third").await.unwrap_err());
    assert_full(two.run(&noop, 3).queue("a").await.unwrap_err());
    assert!(matches!(one.get::<i64>("third").await, Err(Error::NotFound { .. })));
    // a waiting Start waits until its timeout
    let short = Duration::from_millis(1);
    let error = one.start(&noop, 4).queue("a").on_full(OnFull::Wait).wait_timeout(short).await;
    assert!(matches!(error, Err(Error::QueueFull { .. } | Error::Unavailable(_))));
    let waits = |engine: &Engine, x| {
        let (engine, noop) = (engine.clone(), noop.clone());
        tokio::spawn(async move { engine.run(&noop, x).queue("a").on_full(OnFull::Wait).await })
    };
    let waiting: Vec<_> = (0..20).map(|x| waits(if x % 2 == 0 { &one } else { &two }, x)).collect();
    one.resume_queue("a").await.unwrap();
    assert_eq!((first.result().await.unwrap(), second.result().await.unwrap()), (1, 2));
    for (x, waiting) in (0..).zip(waiting) {
        assert_eq!(waiting.await.unwrap().unwrap(), x);
    }
    // an existing id is not rejected by a full queue
    one.pause_queue("a").await.unwrap();
    let existing = one.start(&noop, 5).queue("a").workflow_id("fifth").await.unwrap();
    one.start(&noop, 6).queue("a").await.unwrap();
    let repeated = two.start(&noop, 5).queue("a").workflow_id("fifth").await.unwrap();
    assert_eq!(existing.key(), repeated.key());
    shut_down(two).await;
    shut_down(one).await;
}

async fn start_many_starts_every_input(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) =
        open_engine(fixture, |b| b.register(&noop).queue(Queue::new("a").concurrency(50))).await;
    // the first flush is held until all Starts are staged, on a store of any speed
    store.hold_calls(&[Call::Commit]);
    let starts = engine.start_many(&noop, 0..500).queue("a").key("k").priority(2).into_future();
    let (handles, ()) = tokio::join!(starts, async {
        store.wait_until_hanging().await;
        store.release();
    });
    let handles = handles.unwrap();
    assert_eq!(handles.len(), 500);
    for (x, handle) in (0..).zip(&handles) {
        assert_eq!(handle.result().await.unwrap(), x);
    }
    let row = row(&engine, &handles[7].workflow_id()).await;
    let placement = row.placement.unwrap();
    assert_eq!((&*placement.queue, &*placement.key, placement.priority), ("a", "k", 2));
    // the Starts share flushes
    assert!(store.flush_sizes().into_iter().max().unwrap() >= 50);
    assert!(engine.start_many(&noop, []).await.unwrap().is_empty());
    let error = engine.start_many(&noop, 0..3).queue("undeclared").await.unwrap_err();
    assert!(matches!(error, Error::UnknownQueue { .. }), "{error}");
    shut_down(engine).await;
}

async fn debounced_execution_begins_once_with_the_last_input(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&noop).queue(Queue::new("a"))).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&noop)).await;
    let max_delay = Duration::from_secs(100);
    let start = async |engine: &Engine, x: i64, seconds: u64| {
        let start = engine.start(&noop, x).queue("a").delay(Duration::from_secs(seconds)).debounce("doc 7");
        start.max_delay(max_delay).await
    };
    let first = start(&one, 1, 60).await.unwrap();
    let second = start(&two, 2, 60).await.unwrap();
    assert_eq!((first.key(), first.status().await.unwrap()), (second.key(), Status::Scheduled));
    let all = join_all((3..50).map(|x| start(if x % 2 == 0 { &one } else { &two }, x, 70))).await;
    assert!(all.iter().all(|handle| handle.as_ref().unwrap().key() == first.key()));
    assert_eq!(start(&one, 77, 100).await.unwrap().key(), first.key());
    let shown = one.show(&first.workflow_id()).await.unwrap().execution;
    assert_eq!((shown.debounce_id(), shown.given_dedup_id()), (Some("doc 7"), None));
    // at most this long after the first Start
    assert_eq!(shown.wake_at, Some(shown.created_at.plus(max_delay)));
    fixture.clock().advance(max_delay);
    assert_eq!(first.result().await.unwrap(), 77);
    let next = start(&two, 4, 60).await.unwrap();
    assert_ne!(next.key(), first.key());
    let assert_invalid =
        |error: Error, expected: &str| assert!(error.to_string().contains(expected), "{error}");
    let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
    let debounced = || one.start(&noop, 1).queue("a").debounce("x");
    assert_invalid(debounced().await.unwrap_err(), "needs a delay");
    assert_invalid(debounced().delay(minute).max_delay(second).await.unwrap_err(), "shorter than the delay");
    assert_invalid(
        debounced().delay(minute).workflow_id("w").await.unwrap_err(),
        "does not go with workflow_id",
    );
    assert_invalid(debounced().delay(minute).dedup_id("w").await.unwrap_err(), "does not go with dedup_id");
    assert_invalid(debounced().delay(minute).execution_timeout(minute).await.unwrap_err(), "use run_timeout");
    assert_invalid(one.start(&noop, 1).debounce("x").delay(minute).await.unwrap_err(), "needs a queue");
    assert_invalid(
        one.start(&noop, 1).delay(minute).max_delay(minute).await.unwrap_err(),
        "goes with `debounce`",
    );
    shut_down(one).await;
    shut_down(two).await;
}

async fn waiting_start_enters_the_queue_after_a_cancel(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&noop).queue(Queue::new("a").max_depth(1))).await;
    one.pause_queue("a").await.unwrap();
    let first = one.start(&noop, 1).queue("a").await.unwrap();
    let (engine, workflow) = (one.clone(), noop.clone());
    let waiting =
        tokio::spawn(async move { engine.start(&workflow, 2).queue("a").on_full(OnFull::Wait).await });
    first.cancel().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    assert_eq!(second.status().await.unwrap(), Status::Queued);
    // the wait also ends when the engine ends
    let (engine, workflow) = (one.clone(), noop.clone());
    let waiting =
        tokio::spawn(async move { engine.start(&workflow, 3).queue("a").on_full(OnFull::Wait).await });
    shut_down(one).await;
    assert!(matches!(waiting.await.unwrap(), Err(Error::Shutdown | Error::Unavailable(_))));
}

async fn run_timeout_begins_with_the_execution(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a"))).await;
    one.pause_queue("a").await.unwrap();
    let (timeout, long) = (Duration::from_millis(1), Duration::from_secs(3600));
    let queued = one.start(&workflow, 1).queue("a").run_timeout(timeout).workflow_id("queued").await.unwrap();
    // time in the queue does not count; a worker would have to wait for the lock in any case
    let (status, row) = (queued.status().await.unwrap(), row(&one, "queued").await);
    assert_eq!((status, row.run_timeout, row.deadline_at), (Status::Queued, Some(timeout), None));
    let without_queue = one.start(&workflow, 2).run_timeout(timeout).await.unwrap();
    assert!(matches!(without_queue.result().await, Err(Error::Cancelled(_))));
    let both = one.start(&workflow, 3).run_timeout(long).execution_timeout(timeout).await.unwrap();
    assert!(matches!(both.result().await, Err(Error::Cancelled(_))));
    one.resume_queue("a").await.unwrap();
    assert!(matches!(queued.result().await, Err(Error::Cancelled(_))));
    let begun = one.start(&workflow, 4).queue("a").run_timeout(long).workflow_id("begun").await.unwrap();
    latch.open();
    assert_eq!(begun.result().await.unwrap(), 4);
    let row = super::support::row(&one, "begun").await;
    assert!(row.run_timeout.is_none() && row.deadline_at.unwrap() > row.created_at.plus(long / 2));
    shut_down(one).await;
}
