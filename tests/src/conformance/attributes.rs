//! Attributes: named values that a Start gives to its execution, and by which executions are found.

use stepfast_core::attributes::Attributes;
use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Filter, Flush, Outcome, Page, RequestResult, Start, State, Status};

use super::queue::set_queue;
use crate::fixtures::builders::{
    at, child_of, completed, ended, keys, nasty_texts, parked, placement, queued, resume, running, scheduled,
    start, start_queued, start_running, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    attributes_are_kept_for_every_kind_of_start,
    attributes_are_kept_until_the_execution_ends,
    executions_are_found_by_one_attribute,
    executions_are_found_by_several_attributes,
    newest_executions_of_each_value_are_found,
    attributes_combine_with_other_filters,
    pages_continue_after_the_last_key,
    attributes_accept_any_text,
    rejected_start_leaves_no_attributes,
    resent_flush_keeps_attributes,
    flush_carries_attributes_of_a_thousand_starts,
    executions_are_found_by_queue,
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

/// Returns the keys that a filter finds, newest first. Asserts that the count of the filter agrees.
async fn found(worker: &Worker, filter: Filter) -> Vec<Key> {
    let rows = worker.store.list(&filter).await.unwrap().executions;
    let count = worker.store.list(&Filter { limit: 0, ..filter }).await.unwrap();
    assert_eq!(count, Page { executions: Vec::new(), total: Some(rows.len() as u64) });
    rows.iter().map(|row| row.key).collect()
}

async fn attributes_are_kept_for_every_kind_of_start(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set_queue(&*fixture.store(), &Queue::new("free"), false).await;
    set_queue(&*fixture.store(), &Queue::new("serial").concurrency(1), false).await;
    let parent = Key::mint(0);
    worker.apply(vec![start_running(parent)]).await;
    let self_claiming = |key, queue: &str| Start {
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
        self_claiming(minted[5], "free"),
        self_claiming(minted[6], "serial"),
        child_of(parent, minted[7], running()),
        Start { placement: placement("free", "", 0), ..held },
    ];
    let all = [("customer", "acme"), ("region", "eu")];
    let mut outcomes = worker.commit(starts.map(|start| write(with(&all, start))).into()).await;
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

async fn attributes_are_kept_until_the_execution_ends(fixture: &dyn StoreFixture) {
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

async fn executions_are_found_by_one_attribute(fixture: &dyn StoreFixture) {
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

async fn newest_executions_of_each_value_are_found(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let keys: [Key; 40] = keys();
    let starts = keys.iter().zip(0..).map(|(key, n)| {
        let value = ["acme", "beta"][n % 2];
        // a value of another name
        write(with(&[("customer", value), ("of", "acme")], start(*key, queued())))
    });
    worker.apply(starts.collect()).await;
    let newest = |first: usize, limit: usize| -> Vec<Key> {
        keys.iter().skip(first).step_by(2).rev().take(limit).copied().collect()
    };
    for limit in [1, 7, 20, u64::MAX] {
        let values = ["beta", "acm", "acme", "beta", "Acme", "a\0b", ""];
        let count = usize::try_from(limit).unwrap_or(usize::MAX);
        let (acme, beta) = (newest(0, count), newest(1, count));
        let expected = [beta.clone(), vec![], acme, beta, vec![], vec![], vec![]];
        assert_eq!(worker.store.find("customer", &values, limit).await.unwrap(), expected, "{limit}");
    }
    assert_eq!(worker.store.find("customer\0", &["acme"], 9).await.unwrap(), [vec![]]);
    assert!(worker.store.find("customer", &[], 9).await.unwrap().is_empty());
}

async fn executions_are_found_by_several_attributes(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let bits = |i: u32| (0..3).filter(move |n| i & (1 << n) != 0);
    let names = ["a", "b", "c"];
    let executions: [Key; 8] = keys();
    let given = |i: u32| bits(i).map(|n| (names[n as usize], "1")).collect::<Vec<_>>();
    let starts = executions.iter().zip(0..).map(|(key, i)| write(with(&given(i), start(*key, queued()))));
    worker.apply(starts.collect()).await;
    for wanted in 0..8 {
        let expected: Vec<Key> =
            (0..8u32).rev().filter(|i| i & wanted == wanted).map(|i| executions[i as usize]).collect();
        assert_eq!(found(&worker, filter(&given(wanted))).await, expected, "{wanted}");
    }
    assert!(found(&worker, filter(&[("a", "1"), ("b", "2")])).await.is_empty());
}

async fn attributes_combine_with_other_filters(fixture: &dyn StoreFixture) {
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

async fn pages_continue_after_the_last_key(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let executions: [Key; 10] = keys();
    let starts = executions.iter().zip(0..).map(|(key, i)| {
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
    assert_eq!(
        pages,
        [vec![executions[9], executions[7]], vec![executions[5], executions[3]], vec![executions[1]]]
    );
}

async fn attributes_accept_any_text(fixture: &dyn StoreFixture) {
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
        let value = all.get("n").unwrap();
        assert_eq!(worker.store.find("n", &[value], 9).await.unwrap(), [[*key]], "{all:?}");
    }
    // no row can contain a NUL
    assert!(found(&worker, filter(&[("n", "a\0b")])).await.is_empty());
    assert!(found(&worker, filter(&[("n\0", "a")])).await.is_empty());
}

async fn rejected_start_leaves_no_attributes(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set_queue(&*fixture.store(), &Queue::new("full").max_depth(1), false).await;
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
        let value = n.to_string();
        assert_eq!(worker.commit_one(write(with(&[("first", &value)], make(first)))).await, Outcome::Applied);
        let outcome = worker.commit_one(write(with(&[("second", &value)], make(second)))).await;
        assert_ne!(outcome, Outcome::Applied);
        assert_eq!(found(&worker, filter(&[("first", &value)])).await, [first]);
        assert!(found(&worker, filter(&[("second", &value)])).await.is_empty());
        assert_eq!(worker.execution(first).await.attributes, of(&[("first", &value)]));
    }
}

async fn resent_flush_keeps_attributes(fixture: &dyn StoreFixture) {
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
    let resent = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&resent).await.unwrap(), vec![Outcome::Applied; 3]);
    for (key, name) in [(a, "a"), (b, "b"), (c, "c")] {
        assert_eq!(worker.execution(key).await.attributes, of(&[("n", name)]));
    }
    // with another flush number, as after a fence
    let outcome = worker.commit_one(write(with(&[("m", "other")], special))).await;
    assert!(matches!(outcome, Outcome::Duplicate(existing) if existing.key == b));
    assert_eq!(worker.execution(b).await.attributes, of(&[("n", "b")]));
}

async fn flush_carries_attributes_of_a_thousand_starts(fixture: &dyn StoreFixture) {
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

async fn executions_are_found_by_queue(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, plain] = keys();
    let placed =
        |key, queue: &str| write(Start { placement: placement(queue, "k", 1), ..start(key, queued()) });
    worker.apply(vec![placed(a, "a"), placed(b, "b"), start_queued(plain)]).await;
    let of = |queue: &str| Filter { queue: Some(queue.into()), ..Filter::default() };
    assert_eq!(found(&worker, of("a")).await, [a]);
    assert_eq!(found(&worker, of("b")).await, [b]);
    assert_eq!(found(&worker, of("default")).await, [plain]);
    for queue in ["", "A", "a\0"] {
        assert!(found(&worker, of(queue)).await.is_empty(), "{queue:?}");
    }
}
