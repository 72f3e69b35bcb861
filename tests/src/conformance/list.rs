//! Lists: filters, pages and counts.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{Filter, Page, Parent, Start, State, Status, Wait};

use crate::fixtures::builders::{
    at, child_of, completed, ended, keys, nasty_texts, parked, pending_sleeps, queued, running, sleeping,
    start, start_in, start_queued, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    newest_key_is_listed_first_in_any_write_order,
    pages_cover_everything_once,
    default_filter_lists_the_newest_fifty,
    count_ignores_the_page,
    rows_are_listed_without_payloads,
    executions_are_filtered_by_status,
    executions_are_filtered_by_workflow,
    executions_are_filtered_by_parked,
    executions_are_filtered_by_parent,
    executions_are_filtered_by_app_version,
    executions_are_filtered_by_creation_time,
    executions_are_filtered_by_id_prefix,
    id_prefix_is_matched_as_plain_text,
    filters_combine,
];

async fn list(worker: &Worker, filter: Filter) -> Vec<Key> {
    let rows = worker.store.list(&filter).await.unwrap();
    assert_eq!(rows.total, None, "a page contains rows or the count, never both");
    if filter.after.is_none() && rows.executions.len() < filter.limit {
        let total = Some(rows.executions.len() as u64);
        let count = worker.store.list(&Filter { limit: 0, ..filter }).await.unwrap();
        assert_eq!(count, Page { executions: Vec::new(), total });
    }
    rows.executions.iter().map(|row| row.key).collect()
}

fn newest_first(keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
    let mut keys: Vec<Key> = keys.into_iter().collect();
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys
}

async fn newest_key_is_listed_first_in_any_write_order(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    assert!(list(&worker, Filter::default()).await.is_empty());
    let executions: [Key; 5] = keys();
    for i in [3, 0, 4, 2, 1] {
        let given = Start { created_at: at(-(i as i64)), ..start(executions[i], queued()) };
        worker.apply(vec![write(given)]).await;
    }
    let extremes = [Key::from_bytes([0; 16]), Key::from_bytes([0x80; 16]), Key::from_bytes([0xff; 16])];
    worker.apply(extremes.map(start_queued).to_vec()).await;
    assert_eq!(list(&worker, Filter::default()).await, newest_first(executions.into_iter().chain(extremes)));
}

async fn pages_cover_everything_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let executions: [Key; 23] = keys();
    let state = |i: usize| if i.is_multiple_of(3) { completed() } else { queued() };
    worker.apply(executions.iter().enumerate().map(|(i, key)| start_in(*key, state(i))).collect()).await;
    for (statuses, limit) in [(vec![], 1), (vec![], 5), (vec![], 23), (vec![], 24), (vec![Status::Queued], 4)]
    {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let filter = Filter { after, limit, statuses: statuses.clone(), ..Filter::default() };
            let page = list(&worker, filter).await;
            assert!(page.len() <= limit);
            after = page.last().copied();
            if page.is_empty() {
                break;
            }
            seen.extend(page);
        }
        let expected = executions.iter().enumerate().filter(|(i, _)| statuses.is_empty() || i % 3 != 0);
        assert_eq!(seen, newest_first(expected.map(|(_, key)| *key)));
    }
}

async fn default_filter_lists_the_newest_fifty(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let executions: [Key; 53] = keys();
    worker.apply(executions.map(start_queued).to_vec()).await;
    assert_eq!(list(&worker, Filter::default()).await, newest_first(executions[3..].to_vec()));
}

async fn count_ignores_the_page(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let executions: [Key; 9] = keys();
    worker.apply(executions.map(start_queued).to_vec()).await;
    let filter = Filter { after: Some(executions[4]), limit: 0, ..Filter::default() };
    assert_eq!(worker.store.list(&filter).await.unwrap().total, Some(9));
    assert_eq!(list(&worker, Filter { limit: 100, ..filter }).await, newest_first(executions[..4].to_vec()));
    let none = Filter { after: Some(Key::from_bytes([0; 16])), limit: 5, ..Filter::default() };
    assert!(list(&worker, none).await.is_empty());
}

async fn rows_are_listed_without_payloads(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let sleeps = pending_sleeps(&[(1, 90)]);
    let waiting = State::Waiting {
        wake_at: Some(at(90)),
        waits: Wait::for_children(keys::<1>()),
        pending_sleeps: sleeps,
    };
    for state in [running(), queued(), waiting, parked("why"), completed(), ended(Status::Failed, "x")] {
        let [root, parent, key] = keys();
        let given = Start {
            root,
            parent: Some(Parent { key: parent, is_detached: true }),
            workflow_id: Some(key.to_string().to_uppercase().into()),
            fingerprint: Some(5),
            deadline_at: Some(at(1_000)),
            ..start(key, state)
        };
        worker.apply(vec![write(given)]).await;
        let mut expected = worker.execution(key).await;
        expected.input = stepfast_core::Payload::empty();
        expected.outcome = stepfast_core::Payload::empty();
        let page = worker.store.list(&Filter { limit: 1, ..Filter::default() }).await.unwrap();
        assert_eq!(page.executions, [expected]);
    }
}

async fn executions_are_filtered_by_status(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let executions: [Key; 6] = keys();
    let states = [
        queued(),
        running(),
        sleeping(at(9)),
        completed(),
        ended(Status::Failed, "x"),
        ended(Status::Cancelled, "x"),
    ];
    worker.apply(executions.iter().zip(states).map(|(key, state)| start_in(*key, state)).collect()).await;
    for (status, key) in Status::ALL[1..].iter().zip(executions) {
        assert_eq!(list(&worker, Filter { statuses: vec![*status], ..Filter::default() }).await, [key]);
    }
    let several = vec![Status::Failed, Status::Queued, Status::Scheduled];
    assert_eq!(
        list(&worker, Filter { statuses: several, ..Filter::default() }).await,
        [executions[4], executions[0]]
    );
    let all = Filter { statuses: Status::ALL.to_vec(), ..Filter::default() };
    assert_eq!(list(&worker, all).await.len(), 6);
}

async fn executions_are_filtered_by_workflow(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let names = nasty_texts();
    let starts: Vec<Start> = names
        .iter()
        .map(|name| Start { workflow: name.clone(), ..start(Key::mint(0), completed()) })
        .collect();
    worker.apply(starts.iter().cloned().map(write).collect()).await;
    for given in starts {
        let filter = Filter { workflow: Some(given.workflow.clone()), ..Filter::default() };
        assert_eq!(list(&worker, filter).await, [given.key], "{:?}", given.workflow);
    }
    assert!(list(&worker, Filter { workflow: Some("unknown".into()), ..Filter::default() }).await.is_empty());
}

async fn executions_are_filtered_by_parked(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, c] = keys();
    worker.apply(vec![start_in(a, parked("x")), start_queued(b), start_in(c, completed())]).await;
    let filter = |is_parked| Filter { is_parked: Some(is_parked), ..Filter::default() };
    assert_eq!(list(&worker, filter(true)).await, [a]);
    assert_eq!(list(&worker, filter(false)).await, [c, b]);
}

async fn executions_are_filtered_by_parent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [root, waited, detached, grandchild, other] = keys();
    let detached_parent = Some(Parent { key: root, is_detached: true });
    worker
        .apply(vec![
            start_queued(root),
            write(child_of(root, waited, completed())),
            write(Start { parent: detached_parent, ..child_of(root, detached, queued()) }),
            write(Start { root, ..child_of(waited, grandchild, queued()) }),
            start_queued(other),
        ])
        .await;
    let filter = |parent| Filter { parent: Some(parent), ..Filter::default() };
    assert_eq!(list(&worker, filter(root)).await, [detached, waited]);
    assert_eq!(list(&worker, filter(waited)).await, [grandchild]);
    assert!(list(&worker, filter(other)).await.is_empty());
}

async fn executions_are_filtered_by_app_version(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [first, second, other] = keys();
    for (key, version) in [(first, Some("1")), (second, Some("1.1")), (other, None)] {
        worker
            .apply(vec![write(Start { app_version: version.map(Into::into), ..start(key, queued()) })])
            .await;
    }
    let filter = |version: &str| Filter { app_version: Some(version.into()), ..Filter::default() };
    assert_eq!(list(&worker, filter("1")).await, [first]);
    assert_eq!(list(&worker, filter("1.1")).await, [second]);
    for version in ["", "2", "1\0"] {
        assert!(list(&worker, filter(version)).await.is_empty(), "{version:?}");
    }
    let counted = Filter { limit: 0, ..filter("1") };
    assert_eq!(worker.store.list(&counted).await.unwrap().total, Some(1));
}

async fn executions_are_filtered_by_creation_time(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let executions: [Key; 4] = keys();
    let starts =
        executions.iter().zip(0..).map(|(key, i)| Start { created_at: at(i), ..start(*key, queued()) });
    worker.apply(starts.map(write).collect()).await;
    let filter = |from: Option<i64>, before: Option<i64>| Filter {
        created_from: from.map(at),
        created_before: before.map(at),
        ..Filter::default()
    };
    assert_eq!(list(&worker, filter(Some(1), None)).await, [executions[3], executions[2], executions[1]]);
    assert_eq!(list(&worker, filter(None, Some(1))).await, [executions[0]]);
    assert_eq!(list(&worker, filter(Some(1), Some(3))).await, [executions[2], executions[1]]);
    assert!(list(&worker, filter(Some(2), Some(2))).await.is_empty());
}

async fn executions_are_filtered_by_id_prefix(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [seven, seventy, eight, minted] = keys();
    for (key, id) in
        [(seven, Some("order-7")), (seventy, Some("order-70")), (eight, Some("order-8")), (minted, None)]
    {
        let workflow_id = id.map(Arc::from);
        worker.apply(vec![write(Start { workflow_id, ..start(key, queued()) })]).await;
    }
    let filter = |prefix: &str| Filter { id_prefix: Some(prefix.into()), ..Filter::default() };
    assert_eq!(list(&worker, filter("order-7")).await, [seventy, seven]);
    assert_eq!(list(&worker, filter("order-")).await, [eight, seventy, seven]);
    assert_eq!(list(&worker, filter("order-70")).await, [seventy]);
    assert_eq!(list(&worker, filter("")).await.len(), 4);
    assert!(list(&worker, filter("rder")).await.is_empty());
    assert!(list(&worker, filter("ORDER")).await.is_empty());
    let text = minted.to_string();
    for length in [8, 9, 13, 14, 20, 35, 36] {
        let found = list(&worker, filter(&text[..length])).await;
        assert!(found.contains(&minted), "{length} characters");
        assert!(!found.contains(&seven), "an execution with a workflow_id is not found by its key");
    }
    assert_eq!(list(&worker, filter(&text)).await, [minted]);
    assert!(list(&worker, filter(&format!("{text}0"))).await.is_empty());
    assert!(list(&worker, filter(&text.to_uppercase())).await.is_empty());
    assert!(list(&worker, filter(&text.replace('-', ""))).await.is_empty());
}

async fn id_prefix_is_matched_as_plain_text(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let ids = nasty_texts();
    let starts: Vec<Start> = ids
        .iter()
        .map(|id| Start { workflow_id: Some(id.clone()), ..start(Key::mint(0), queued()) })
        .collect();
    worker.apply(starts.iter().cloned().map(write).collect()).await;
    let mut prefixes = ids.clone();
    prefixes.extend(["%", "_", "a%", "a_", "order_7", "\\", "*", "?", "[a", "100"].map(Arc::from));
    for prefix in prefixes {
        let matching =
            starts.iter().filter(|start| start.workflow_id.as_ref().unwrap().starts_with(&*prefix));
        let expected = newest_first(matching.map(|start| start.key));
        let filter = Filter { id_prefix: Some(prefix.clone()), ..Filter::default() };
        assert_eq!(list(&worker, filter).await, expected, "{prefix:?}");
    }
}

async fn filters_combine(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let root = Key::mint(0);
    let mut wanted = Vec::new();
    let mut writes = vec![start_queued(root)];
    for i in 0..128 {
        let key = Key::mint(0);
        let bit = |n: u32| i & (1 << n) != 0;
        let given = Start {
            parent: bit(0).then_some(Parent { key: root, is_detached: bit(1) }),
            workflow: if bit(2) { "ship" } else { "checkout" }.into(),
            workflow_id: bit(3).then(|| format!("id-{i}").into()),
            created_at: at(i64::from(bit(4))),
            app_version: bit(6).then(|| "1".into()),
            ..start(key, if bit(5) { parked("x") } else { queued() })
        };
        if [0, 2, 3, 4, 5, 6].into_iter().all(bit) {
            wanted.push(key);
        }
        writes.push(write(given));
    }
    worker.apply(writes).await;
    let filter = Filter {
        statuses: vec![Status::Queued, Status::Failed],
        workflow: Some("ship".into()),
        is_parked: Some(true),
        parent: Some(root),
        id_prefix: Some("id-".into()),
        app_version: Some("1".into()),
        created_from: Some(at(1)),
        created_before: Some(at(2)),
        ..Filter::default()
    };
    assert_eq!(list(&worker, filter).await, newest_first(wanted));
}
