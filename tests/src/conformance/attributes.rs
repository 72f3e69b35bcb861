//! Attributes: names with values that executions are given when they are started, and found by.

use stepfast_core::attributes::Attributes;
use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Filter, Flush, Outcome, Page, RequestResult, Start, State, Status};

use super::queue::set;
use crate::fixtures::builders::{
    at, child_of, completed, ended, keys, transition, nasty_texts, parked, queued, resume, running, scheduled,
    start, start_queued, start_running, placement, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    they_are_kept_whatever_the_start_is,
    they_are_kept_until_the_end,
    executions_are_found_by_one,
    executions_are_found_by_several,
    they_go_with_other_filters,
    pages_follow_each_other,
    they_are_plain_text,
    a_start_that_loses_leaves_none,
    a_flush_may_be_resent,
    a_thousand_share_a_flush,
    queues_are_filtered,
];

fn of(pairs: &[(&str, &str)]) -> Attributes {
    pairs.iter().copied().collect()
}

fn with(pairs: &[(&str, &str)], start: Start) -> Start {
    Start { attributes: of(pairs), ..start }
}

fn filter(pairs: &[(&str, &str)]) -> Filter {
    Filter { attributes: of(pairs), ..Filter::default() }
}

/// What a filter finds, newest first, after its count was seen to be the same.
async fn found(worker: &Worker, filter: Filter) -> Vec<Key> {
    let rows = worker.store.list(&filter).await.unwrap().executions;
    let count = worker.store.list(&Filter { limit: 0, ..filter }).await.unwrap();
    assert_eq!(count, Page { executions: Vec::new(), total: Some(rows.len() as u64) });
    rows.iter().map(|row| row.key).collect()
}

async fn they_are_kept_whatever_the_start_is(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set(&*fixture.store(), &Queue::new("free"), false).await;
    set(&*fixture.store(), &Queue::new("serial").concurrency(1), false).await;
    let parent = Key::mint(0);
    worker.apply(vec![start_running(parent)]).await;
    let yielding = |key, queue: &str| Start {
        self_claims: true,
        placement: placement(queue, "", 0),
        ..start(key, running())
    };
    let waits = State::Scheduled { due_at: at(100) };
    let mut minted = keys::<9>();
    minted.sort();
    let held = Start { dedup_id: Some("x".into()), is_guarded: true, ..start(minted[8], waits) };
    let starts = [
        start(minted[0], running()),
        start(minted[1], ended(Status::Completed, "done")),
        start(minted[2], queued()),
        Start { workflow_id: Some("given".into()), is_guarded: true, ..start(minted[3], running()) },
        Start { placement: placement("free", "k", 3), ..start(minted[4], queued()) },
        yielding(minted[5], "free"),
        yielding(minted[6], "serial"),
        child_of(parent, minted[7], running()),
        Start { placement: placement("free", "", 0), ..held },
    ];
    let all = [("customer", "acme"), ("region", "eu")];
    let mut outcomes = worker.commit(starts.map(|it| write(with(&all, it))).into()).await;
    assert_eq!(outcomes.remove(6), Outcome::Queued);
    assert_eq!(outcomes, vec![Outcome::Applied; 8]);
    for key in minted {
        assert_eq!(worker.execution(key).await.attributes, of(&all), "{key}");
    }
    let listed = worker.store.list(&filter(&all)).await.unwrap().executions;
    assert!(listed.iter().all(|row| row.attributes == of(&all)));
    assert!(listed.iter().map(|row| row.key).eq(minted.into_iter().rev()));
    assert_eq!(worker.execution(parent).await.attributes, Attributes::NONE);
}

async fn they_are_kept_until_the_end(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![write(with(&[("a", "1")], start(key, queued())))]).await;
    assert_eq!(worker.claim_keys(1).await, [key]);
    worker.apply(vec![transition(key, parked("x"))]).await;
    assert_eq!(found(&worker, filter(&[("a", "1")])).await, [key]);
    let mut other = Worker::register(&fixture.store()).await;
    assert_eq!(other.commit_one(resume(key)).await, Outcome::RequestHandled(RequestResult::Done, None));
    assert_eq!(other.claim_keys(1).await, [key]);
    other.apply(vec![transition(key, completed())]).await;
    assert_eq!(found(&worker, filter(&[("a", "1")])).await, [key]);
    assert_eq!(worker.execution(key).await.attributes, of(&[("a", "1")]));
}

async fn executions_are_found_by_one(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, c, other] = keys();
    let starts = [
        with(&[("customer", "acme")], start(a, queued())),
        with(&[("customer", "beta"), ("acme", "customer")], start(b, queued())),
        with(&[("customer", "acme"), ("region", "eu")], start(c, queued())),
        start(other, queued()),
    ];
    worker.apply(starts.map(write).into()).await;
    assert_eq!(found(&worker, filter(&[("customer", "acme")])).await, [c, a]);
    assert_eq!(found(&worker, filter(&[("customer", "beta")])).await, [b]);
    for (name, value) in [("customer", "acm"), ("customer", "acme "), ("Customer", "acme"), ("acme", "acme")]
    {
        assert!(found(&worker, filter(&[(name, value)])).await.is_empty(), "{name}={value}");
    }
}

async fn executions_are_found_by_several(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let bits = |i: u32| (0..3).filter(move |n| i & (1 << n) != 0);
    let names = ["a", "b", "c"];
    let some: [Key; 8] = keys();
    let given = |i: u32| bits(i).map(|n| (names[n as usize], "1")).collect::<Vec<_>>();
    let starts = some.iter().zip(0..).map(|(key, i)| write(with(&given(i), start(*key, queued()))));
    worker.apply(starts.collect()).await;
    for wanted in 0..8 {
        let expected: Vec<Key> =
            (0..8u32).rev().filter(|i| i & wanted == wanted).map(|i| some[i as usize]).collect();
        assert_eq!(found(&worker, filter(&given(wanted))).await, expected, "{wanted}");
    }
    assert!(found(&worker, filter(&[("a", "1"), ("b", "2")])).await.is_empty());
}

async fn they_go_with_other_filters(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, c] = keys();
    let starts = [
        with(&[("x", "1")], Start { workflow: "ship".into(), ..start(a, queued()) }),
        with(&[("x", "1")], Start { workflow: "ship".into(), ..start(b, parked("x")) }),
        with(&[("x", "1")], Start { created_at: at(5), ..start(c, queued()) }),
    ];
    worker.apply(starts.map(write).into()).await;
    let shipped = Filter { workflow: Some("ship".into()), ..filter(&[("x", "1")]) };
    assert_eq!(found(&worker, shipped.clone()).await, [b, a]);
    assert_eq!(found(&worker, Filter { is_parked: Some(true), ..shipped.clone() }).await, [b]);
    assert_eq!(found(&worker, Filter { created_from: Some(at(1)), ..filter(&[("x", "1")]) }).await, [c]);
    assert!(found(&worker, Filter { created_from: Some(at(1)), ..shipped }).await.is_empty());
}

async fn pages_follow_each_other(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let some: [Key; 10] = keys();
    let starts = some.iter().zip(0..).map(|(key, i)| {
        let parity = if i % 2 == 0 { "even" } else { "odd" };
        write(with(&[("parity", parity)], start(*key, queued())))
    });
    worker.apply(starts.collect()).await;
    let mut pages = Vec::new();
    let mut wanted = Filter { limit: 2, ..filter(&[("parity", "odd")]) };
    loop {
        let page = worker.store.list(&wanted).await.unwrap().executions;
        let Some(last) = page.last() else { break };
        wanted.after = Some(last.key);
        pages.push(page.iter().map(|row| row.key).collect::<Vec<_>>());
    }
    assert_eq!(pages, [vec![some[9], some[7]], vec![some[5], some[3]], vec![some[1]]]);
}

async fn they_are_plain_text(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let texts: Vec<_> = nasty_texts().into_iter().filter(|text| (1..=1_024).contains(&text.len())).collect();
    let given: Vec<(Key, Attributes)> = texts
        .iter()
        .map(|text| {
            (Key::mint(0), [(text.clone(), text.clone()), ("n".into(), text.clone())].into_iter().collect())
        })
        .collect();
    let starts =
        given.iter().map(|(key, all)| write(Start { attributes: all.clone(), ..start(*key, queued()) }));
    worker.apply(starts.collect()).await;
    for (key, all) in &given {
        assert_eq!(worker.execution(*key).await.attributes, *all);
        let wanted = Filter { attributes: all.clone(), ..Filter::default() };
        assert_eq!(found(&worker, wanted).await, [*key], "{all:?}");
    }
    // no row can have it
    assert!(found(&worker, filter(&[("n", "a\0b")])).await.is_empty());
    assert!(found(&worker, filter(&[("n\0", "a")])).await.is_empty());
}

async fn a_start_that_loses_leaves_none(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set(&*fixture.store(), &Queue::new("full").max_depth(1), false).await;
    let named = |key| Start {
        workflow_id: Some("given".into()),
        fingerprint: Some(1),
        is_guarded: true,
        ..start(key, queued())
    };
    let held = |key| Start {
        dedup_id: Some("x".into()),
        placement: placement("a", "", 0),
        is_guarded: true,
        ..start(key, queued())
    };
    let deep = |key| Start { placement: placement("full", "", 0), ..start(key, queued()) };
    let makes: [fn(Key) -> Start; 3] = [named, held, deep];
    for (n, make) in makes.into_iter().enumerate() {
        let [first, second] = keys();
        let mine = n.to_string();
        assert_eq!(worker.commit_one(write(with(&[("first", &mine)], make(first)))).await, Outcome::Applied);
        let lost = worker.commit_one(write(with(&[("second", &mine)], make(second)))).await;
        assert_ne!(lost, Outcome::Applied);
        assert_eq!(found(&worker, filter(&[("first", &mine)])).await, [first]);
        assert!(found(&worker, filter(&[("second", &mine)])).await.is_empty());
        assert_eq!(worker.execution(first).await.attributes, of(&[("first", &mine)]));
    }
}

async fn a_flush_may_be_resent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, c] = keys();
    let special = Start { workflow_id: Some("given".into()), is_guarded: true, ..start(b, queued()) };
    let writes = vec![
        write(with(&[("n", "a")], start(a, running()))),
        write(with(&[("n", "b")], special.clone())),
        write(with(&[("n", "c")], start(c, scheduled(at(50))))),
    ];
    let flush = worker.new_flush(writes.clone());
    worker.send(&flush).await.unwrap();
    let again = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&again).await.unwrap(), vec![Outcome::Applied; 3]);
    for (key, name) in [(a, "a"), (b, "b"), (c, "c")] {
        assert_eq!(worker.execution(key).await.attributes, of(&[("n", name)]));
    }
    // under another number, as after a fence
    let outcome = worker.commit_one(write(with(&[("m", "other")], special))).await;
    assert!(matches!(outcome, Outcome::Duplicate(existing) if existing.key == b));
    assert_eq!(worker.execution(b).await.attributes, of(&[("n", "b")]));
}

async fn a_thousand_share_a_flush(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let given: Vec<(Key, String)> = (0..1_000).map(|i| (Key::mint(0), i.to_string())).collect();
    let starts = given.iter().map(|(key, i)| write(with(&[("all", "x"), ("i", i)], start(*key, queued()))));
    worker.apply(starts.collect()).await;
    let count = worker.store.list(&Filter { limit: 0, ..filter(&[("all", "x")]) }).await.unwrap();
    assert_eq!(count.total, Some(1_000));
    for (key, i) in given.iter().step_by(97) {
        assert_eq!(found(&worker, filter(&[("i", i), ("all", "x")])).await, [*key]);
    }
}

async fn queues_are_filtered(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, plain] = keys();
    let placed = |key, queue: &str| write(Start { placement: placement(queue, "k", 1), ..start(key, queued()) });
    worker.apply(vec![placed(a, "a"), placed(b, "b"), start_queued(plain)]).await;
    let of = |queue: &str| Filter { queue: Some(queue.into()), ..Filter::default() };
    assert_eq!(found(&worker, of("a")).await, [a]);
    assert_eq!(found(&worker, of("b")).await, [b]);
    assert_eq!(found(&worker, of("default")).await, [plain]);
    for queue in ["", "A", "a\0"] {
        assert!(found(&worker, of(queue)).await.is_empty(), "{queue:?}");
    }
}
