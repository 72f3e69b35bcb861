//! Hints: a waiting engine receives a hint when another store handle has committed.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::Store;

use crate::fixtures::builders::start_queued;
use crate::{StoreFixture, Worker};

super::cases![waiting_engine_receives_a_hint_of_anothers_commit, commit_between_two_calls_yields_a_hint];

/// The longest wait for a hint, which takes milliseconds.
const HINT_TIMEOUT: Duration = Duration::from_secs(30);

async fn waiting_engine_receives_a_hint_of_anothers_commit(fixture: &dyn StoreFixture) {
    if !fixture.has_hints() {
        return;
    }
    let mut one = Worker::register(&fixture.store()).await;
    let two = Worker::register(&fixture.second_store().await).await;
    let (listener, two_id): (Arc<dyn Store>, _) = (two.store.clone(), two.id);
    let received = tokio::spawn(async move { listener.next_hint(two_id).await });
    // commits continue until one is noticed: the test cannot observe when the listener has begun to listen
    let commit_until_received = async {
        while !received.is_finished() {
            one.apply(vec![start_queued(Key::mint(0))]).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HINT_TIMEOUT, commit_until_received).await.expect("no hint");
}

async fn commit_between_two_calls_yields_a_hint(fixture: &dyn StoreFixture) {
    if !fixture.has_hints() {
        return;
    }
    let mut one = Worker::register(&fixture.store()).await;
    let two = Worker::register(&fixture.second_store().await).await;
    let (listener, two_id): (Arc<dyn Store>, _) = (two.store.clone(), two.id);
    for _ in 0..3 {
        one.apply(vec![start_queued(Key::mint(0))]).await;
        tokio::time::timeout(HINT_TIMEOUT, listener.next_hint(two_id)).await.expect("no hint");
    }
}
