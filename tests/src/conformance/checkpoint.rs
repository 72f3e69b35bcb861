//! Checkpoints and attempts: every one that was recorded loads unchanged, in order, once.

use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::payload::Payload;
use stepfast_core::store::{Attempt, Checkpoint, CheckpointKind, StoreError, Write};

use crate::fixtures::builders::{
    at, attempt, checkpoint, keys, nasty_texts, payload, start_running, step_path,
};
use crate::{StoreFixture, Worker};

super::cases![
    checkpoints_of_every_kind_load_as_recorded,
    checkpoints_of_one_flush_keep_their_own_values,
    checkpoints_load_in_their_order,
    step_keeps_its_first_outcome,
    attempts_load_by_path_and_number,
    attempt_is_recorded_once,
    paths_never_collide,
    records_of_adjacent_keys_stay_separate,
    step_name_accepts_any_text,
    start_and_checkpoints_share_a_flush,
];

async fn checkpoints_of_every_kind_load_as_recorded(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    let kinds = [
        CheckpointKind::Step,
        CheckpointKind::Failed,
        CheckpointKind::Abandoned,
        CheckpointKind::Timer,
        CheckpointKind::Child,
    ];
    let recorded: Vec<Checkpoint> = kinds
        .into_iter()
        .zip(1..)
        .map(|(kind, n)| Checkpoint {
            kind,
            run_no: n,
            fingerprint: [None, Some(0), Some(1 << 63), Some(u64::MAX), Some(5)][n as usize - 1],
            outcome: if kind == CheckpointKind::Abandoned { Payload::empty() } else { payload("out") },
            duration_ms: i64::from(n) * 1_000_000_000,
            ..checkpoint(key, n, "")
        })
        .collect();
    worker.apply(recorded.iter().cloned().map(Write::Checkpoint).collect()).await;
    assert_eq!(worker.record(key).await.checkpoints, recorded);
}

/// A store may insert many rows at once, and leave out of one row what it has in common with an earlier one.
async fn checkpoints_of_one_flush_keep_their_own_values(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    let kinds = [CheckpointKind::Step, CheckpointKind::Failed, CheckpointKind::Timer];
    // the periods have no common divisor with the number of rows of a statement
    let recorded: Vec<Checkpoint> = (1..=200)
        .map(|n: u32| Checkpoint {
            kind: kinds[n as usize % 3],
            run_no: n % 5 + 1,
            name: ["a", "b", "a"][n as usize % 3].into(),
            fingerprint: (n % 7 > 2).then_some(u64::from(n % 7)),
            duration_ms: i64::from(n % 11 / 9),
            outcome: payload(&format!("outcome {}", n % 13)),
            ..checkpoint(key, n, "")
        })
        .collect();
    for flush in recorded.chunks(100) {
        worker.apply(flush.iter().cloned().map(Write::Checkpoint).collect()).await;
    }
    assert_eq!(worker.record(key).await.checkpoints, recorded);
}

async fn checkpoints_load_in_their_order(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    for (n, order) in [(1, 40), (2, 7), (3, 1000), (4, 1), (5, 8)] {
        worker.apply(vec![Write::Checkpoint(Checkpoint { order, ..checkpoint(key, n, "x") })]).await;
    }
    let orders: Vec<u32> =
        worker.record(key).await.checkpoints.iter().map(|checkpoint| checkpoint.order).collect();
    assert_eq!(orders, [1, 7, 8, 40, 1000]);
}

async fn step_keeps_its_first_outcome(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [key, unrelated] = keys();
    worker.apply(vec![start_running(key), Write::Checkpoint(checkpoint(key, 1, "first"))]).await;
    let second = Write::Checkpoint(Checkpoint { order: 9, ..checkpoint(key, 1, "second") });
    if let Err(error) = worker.try_commit(vec![start_running(unrelated), second]).await {
        assert!(matches!(error, StoreError::Rejected(_)), "{error}");
        assert!(!worker.exists(unrelated).await, "the flush was applied in part");
        worker.apply(vec![start_running(unrelated)]).await;
    }
    assert_eq!(worker.record(key).await.checkpoints, [checkpoint(key, 1, "first")]);
    assert!(worker.exists(unrelated).await);
}

async fn attempts_load_by_path_and_number(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    for (n, number) in [(300, 1), (2, 2), (2, 10), (2, 1), (240, 1)] {
        worker.apply(vec![Write::Attempt(attempt(key, n, number))]).await;
    }
    let expected: Vec<Attempt> = [(2, 1), (2, 2), (2, 10), (240, 1), (300, 1)]
        .into_iter()
        .map(|(n, number)| attempt(key, n, number))
        .collect();
    assert_eq!(worker.record(key).await.attempts, expected);
}

async fn attempt_is_recorded_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key), Write::Attempt(attempt(key, 1, 1))]).await;
    let second = Write::Attempt(Attempt { failure: payload("later"), ..attempt(key, 1, 1) });
    if let Err(error) = worker.try_commit(vec![second]).await {
        assert!(matches!(error, StoreError::Rejected(_)), "{error}");
    }
    assert_eq!(worker.record(key).await.attempts, [attempt(key, 1, 1)]);
}

async fn paths_never_collide(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let edges = [0, 1, 92, 240, 241, 2287, 2288, 67_823, 67_824, 0x00ff_ffff, 0x0100_0000, u32::MAX];
    let mut paths: Vec<Path> = edges.iter().map(|n| step_path(*n)).collect();
    paths.extend(edges.iter().map(|n| step_path(1).child(*n)));
    paths.extend([step_path(0).child(0).child(0), Path::root()]);
    let recorded: Vec<Checkpoint> = paths
        .into_iter()
        .zip(1..)
        .map(|(path, order)| Checkpoint { path, order, ..checkpoint(key, order, &order.to_string()) })
        .collect();
    worker.apply(vec![start_running(key)]).await;
    worker.apply(recorded.iter().cloned().map(Write::Checkpoint).collect()).await;
    assert_eq!(worker.record(key).await.checkpoints, recorded);
}

async fn records_of_adjacent_keys_stay_separate(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut bytes = *Key::mint(0).as_bytes();
    let keys = [0, 1, 255].map(|last| {
        bytes[15] = last;
        Key::from_bytes(bytes)
    });
    for key in keys {
        let text = key.to_string();
        let records = vec![Write::Checkpoint(checkpoint(key, 1, &text)), Write::Attempt(attempt(key, 1, 1))];
        worker.apply([vec![start_running(key)], records].concat()).await;
    }
    for key in keys {
        let record = worker.record(key).await;
        assert_eq!(record.checkpoints, [checkpoint(key, 1, &key.to_string())]);
        assert_eq!(record.attempts, [attempt(key, 1, 1)]);
    }
}

async fn step_name_accepts_any_text(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let recorded: Vec<Checkpoint> = nasty_texts()
        .into_iter()
        .zip(1..)
        .map(|(name, n)| Checkpoint { name: name.into(), at: at(-1), ..checkpoint(key, n, "x") })
        .collect();
    worker.apply(vec![start_running(key)]).await;
    worker.apply(recorded.iter().cloned().map(Write::Checkpoint).collect()).await;
    assert_eq!(worker.record(key).await.checkpoints, recorded);
}

async fn start_and_checkpoints_share_a_flush(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker
        .apply(vec![
            Write::Checkpoint(checkpoint(key, 1, "a")),
            Write::Attempt(attempt(key, 2, 1)),
            start_running(key),
            Write::Checkpoint(checkpoint(key, 2, "b")),
        ])
        .await;
    let record = worker.record(key).await;
    assert_eq!((record.checkpoints.len(), record.attempts.len()), (2, 1));
}
