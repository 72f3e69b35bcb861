//! Hints: `changed` tells a waiting engine to look.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::Store;

use crate::fixtures::builders::start_queued;
use crate::{StoreFixture, Worker};

super::cases![a_waiting_engine_hears_of_anothers_commit, a_commit_between_two_calls_is_heard_of];

/// Long enough for any machine; a hint takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

async fn a_waiting_engine_hears_of_anothers_commit(fixture: &dyn StoreFixture) {
    if !fixture.has_hints() {
        return;
    }
    let mut one = Worker::register(&fixture.store()).await;
    let two = Worker::register(&fixture.second_store().await).await;
    let listener: Arc<dyn Store> = two.store.clone();
    let heard = tokio::spawn(async move { listener.next_hint().await });
    // commits go on until one is heard of: nothing says when the listener has begun to listen
    let talk = async {
        while !heard.is_finished() {
            one.apply(vec![start_queued(Key::mint(0))]).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, talk).await.expect("the hint comes");
}

async fn a_commit_between_two_calls_is_heard_of(fixture: &dyn StoreFixture) {
    if !fixture.has_hints() {
        return;
    }
    let mut one = Worker::register(&fixture.store()).await;
    let two = Worker::register(&fixture.second_store().await).await;
    let listener: Arc<dyn Store> = two.store.clone();
    for _ in 0..3 {
        one.apply(vec![start_queued(Key::mint(0))]).await;
        tokio::time::timeout(PATIENCE, listener.next_hint()).await.expect("the hint comes");
    }
}
