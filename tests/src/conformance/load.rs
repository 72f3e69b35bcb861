//! Loads: by key and by workflow_id, with the requested detail.

use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{Detail, ExecutionId, Record, Start, Write};

use crate::fixtures::builders::{
    attempt, cancel, checkpoint, completed, keys, parked, queued, running, start, start_in, start_queued,
    write,
};
use crate::{StoreFixture, Worker};

super::cases![
    records_load_in_the_requested_order,
    outcome_detail_omits_input_and_records,
    workflow_id_is_not_matched_as_key,
    load_of_no_ids_returns_nothing,
    thousands_of_records_load_at_once,
    commit_is_visible_to_other_store_handles,
];

async fn records_load_in_the_requested_order(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, missing] = keys();
    let given = Start { workflow_id: Some("order-7".into()), ..start(a, queued()) };
    worker.apply(vec![write(given), start_queued(b)]).await;
    let ids = [
        ExecutionId::Key(b),
        ExecutionId::Given("order-8".into()),
        ExecutionId::Given("order-7".into()),
        ExecutionId::Key(missing),
        ExecutionId::Key(a),
        ExecutionId::Key(b),
        ExecutionId::Given("order-7".into()),
    ];
    for detail in [Detail::Outcome, Detail::Full] {
        let loaded = worker.store.load(&ids, detail).await.unwrap();
        let keys: Vec<Option<Key>> =
            loaded.iter().map(|record| record.as_ref().map(|record| record.execution.key)).collect();
        assert_eq!(keys, [Some(b), None, Some(a), None, Some(a), Some(b), Some(a)]);
    }
}

async fn outcome_detail_omits_input_and_records(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, c] = keys();
    worker.apply(vec![start_in(a, running()), start_in(b, completed()), start_in(c, parked("why"))]).await;
    worker.apply(vec![Write::Checkpoint(checkpoint(a, 1, "x")), Write::Attempt(attempt(a, 2, 1))]).await;
    worker.commit(vec![cancel(a)]).await;
    for key in [a, b, c] {
        let mut execution = worker.execution(key).await;
        assert!(!execution.input.is_empty());
        execution.input = Payload::empty();
        let loaded = worker.store.load(&[ExecutionId::Key(key)], Detail::Outcome).await.unwrap();
        assert_eq!(loaded, [Some(Record::without_details(execution))]);
    }
}

async fn workflow_id_is_not_matched_as_key(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [minted, other] = keys();
    let lookalike = Start { workflow_id: Some(other.to_string().into()), ..start(minted, queued()) };
    worker.apply(vec![write(lookalike)]).await;
    let ids = [
        ExecutionId::Given(other.to_string().into()),
        ExecutionId::Given(minted.to_string().into()),
        ExecutionId::Key(other),
    ];
    let found = worker.store.load(&ids, Detail::Outcome).await.unwrap();
    let keys: Vec<_> = found.into_iter().map(|record| record.map(|record| record.execution.key)).collect();
    assert_eq!(keys, [Some(minted), None, None]);
}

async fn load_of_no_ids_returns_nothing(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    assert!(store.load(&[], Detail::Full).await.unwrap().is_empty());
}

async fn thousands_of_records_load_at_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: Vec<Key> = (0..2_500).map(|_| Key::mint(0)).collect();
    let text = |key: &Key| format!("id of {key}").into();
    let starts =
        all.iter().map(|key| write(Start { workflow_id: Some(text(key)), ..start(*key, running()) }));
    worker.apply(starts.collect()).await;
    let steps = all.iter().map(|key| Write::Checkpoint(checkpoint(*key, 1, &key.to_string())));
    worker.apply(steps.collect()).await;
    let ids: Vec<ExecutionId> = all
        .iter()
        .flat_map(|key| {
            [ExecutionId::Key(*key), ExecutionId::Given(text(key)), ExecutionId::Key(Key::mint(0))]
        })
        .collect();
    let loaded = worker.store.load(&ids, Detail::Full).await.unwrap();
    assert_eq!(loaded.len(), 7_500);
    for (key, three) in all.iter().zip(loaded.chunks(3)) {
        let [Some(by_key), Some(by_id), None] = three else { panic!("{key} is not found twice") };
        assert_eq!(by_key, by_id);
        assert_eq!(by_key.checkpoints, [checkpoint(*key, 1, &key.to_string())]);
    }
}

async fn commit_is_visible_to_other_store_handles(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let other = fixture.second_store().await;
    for _ in 0..20 {
        let key = Key::mint(0);
        worker.apply(vec![start_queued(key)]).await;
        assert!(other.load(&[ExecutionId::Key(key)], Detail::Outcome).await.unwrap()[0].is_some());
    }
}
