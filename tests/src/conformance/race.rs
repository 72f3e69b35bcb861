//! Races: two store handles act at once. In any order, nothing is lost and nothing happens twice.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{Outcome, RequestResult, Start, Status, Store, StoreError, Write};

use crate::fixtures::builders::{
    at, awaiting, cancel, child_of, completed, pause, paused, queued, resume, running, sleeping, start,
    start_in, start_queued, start_running, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    racing_starts_of_an_id_create_one_execution,
    racing_claims_never_overlap,
    racing_child_end_and_parent_wait_wake_once,
    racing_cancel_and_wait_never_miss_each_other,
    racing_cancel_and_end_agree,
    racing_resume_and_parking_never_miss_each_other,
    crossing_cancels_never_deadlock,
    racing_claim_and_cancel_agree,
    racing_takeover_and_flush_agree,
];

const ROUNDS: usize = 25;

/// Runs both futures at once, each in a task of its own.
async fn both<A, B>(
    one: impl Future<Output = A> + Send + 'static,
    two: impl Future<Output = B> + Send + 'static,
) -> (A, B)
where
    A: Send + 'static,
    B: Send + 'static,
{
    let (one, two) = (tokio::spawn(one), tokio::spawn(two));
    (one.await.unwrap(), two.await.unwrap())
}

/// Commits, and retries while another transaction blocks the flush.
async fn commit_with_retries(worker: &mut Worker, writes: Vec<Write>) -> Vec<Outcome> {
    let mut flush = worker.new_flush(writes);
    let mut last = None;
    for _ in 0..100 {
        match worker.send(&flush).await {
            Err(error @ StoreError::Blocked(_)) => last = Some(error),
            Err(error @ StoreError::Unavailable(_)) => {
                flush.is_resent = true;
                last = Some(error);
            }
            result => return result.unwrap(),
        }
        tokio::task::yield_now().await;
    }
    panic!("every commit was blocked: {last:?}");
}

async fn pair(fixture: &dyn StoreFixture) -> (Worker, Worker) {
    let one: Arc<dyn Store> = fixture.store();
    (Worker::register(&one).await, Worker::register(&fixture.second_store().await).await)
}

async fn racing_starts_of_an_id_create_one_execution(fixture: &dyn StoreFixture) {
    let (mut one, mut two) = pair(fixture).await;
    for round in 0..ROUNDS {
        let id: Arc<str> = format!("order-{round}").into();
        let writes = |id: &Arc<str>| {
            let key = Key::mint(0);
            let given = Start { workflow_id: Some(id.clone()), is_guarded: true, ..start(key, queued()) };
            vec![write(given), start_queued(Key::mint(0))]
        };
        let (a, b) = (writes(&id), writes(&id));
        let keys = [a[0].execution(), b[0].execution()];
        let (first, second);
        ((one, first), (two, second)) = both(
            async move {
                let outcomes = commit_with_retries(&mut one, a).await;
                (one, outcomes)
            },
            async move {
                let outcomes = commit_with_retries(&mut two, b).await;
                (two, outcomes)
            },
        )
        .await;
        let winner = match (&first[0], &second[0]) {
            (Outcome::Applied, Outcome::Duplicate(existing)) if existing.key == keys[0] => keys[0],
            (Outcome::Duplicate(existing), Outcome::Applied) if existing.key == keys[1] => keys[1],
            other => panic!("{other:?}"),
        };
        assert!(one.exists(winner).await);
        assert_eq!((&first[1], &second[1]), (&Outcome::Applied, &Outcome::Applied));
    }
    assert_eq!(one.count().await, 3 * ROUNDS as u64);
}

async fn racing_claims_never_overlap(fixture: &dyn StoreFixture) {
    let (mut one, mut two) = pair(fixture).await;
    for _ in 0..4 {
        let ready: Vec<Key> = (0..100).map(|_| Key::mint(0)).collect();
        one.apply(ready.iter().map(|key| start_queued(*key)).collect()).await;
        one.apply((0..100).map(|_| start_in(Key::mint(0), sleeping(at(-1)))).collect()).await;
        let take = |mut worker: Worker| async move {
            let mut taken = Vec::new();
            for _ in 0..20 {
                taken.extend(worker.claim_keys(17).await);
            }
            (worker, taken)
        };
        let ((first, mut all), (second, others)) = both(take(one), take(two)).await;
        (one, two) = (first, second);
        all.extend(others);
        all.extend(one.claim_keys(1_000).await);
        assert_eq!(all.len(), 200);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200, "nothing is claimed twice");
    }
}

async fn racing_child_end_and_parent_wait_wake_once(fixture: &dyn StoreFixture) {
    let (mut one, mut two) = pair(fixture).await;
    for _ in 0..ROUNDS {
        let (parent, child) = (Key::mint(0), Key::mint(0));
        one.apply(vec![start_running(parent)]).await;
        two.apply(vec![write(child_of(parent, child, running()))]).await;
        let (woken, also_woken);
        ((one, woken), (two, also_woken)) = both(
            async move {
                commit_with_retries(&mut one, vec![transition(parent, awaiting(&[child]))]).await;
                let woken = commit_with_retries(&mut one, vec![Write::Wake(parent)]).await;
                (one, woken)
            },
            async move {
                commit_with_retries(&mut two, vec![transition(child, completed())]).await;
                let woken = commit_with_retries(&mut two, vec![Write::Wake(parent)]).await;
                (two, woken)
            },
        )
        .await;
        let wakes =
            [woken, also_woken].concat().iter().filter(|outcome| **outcome == Outcome::Applied).count();
        assert_eq!(wakes, 1);
        assert_eq!(one.claim_keys(10).await, [parent]);
        one.apply(vec![transition(parent, completed())]).await;
    }
}

async fn racing_cancel_and_wait_never_miss_each_other(fixture: &dyn StoreFixture) {
    let (mut one, mut two) = pair(fixture).await;
    for _ in 0..ROUNDS {
        let key = Key::mint(0);
        one.apply(vec![start_running(key)]).await;
        let result;
        (one, (two, result)) = both(
            async move {
                commit_with_retries(&mut one, vec![transition(key, sleeping(at(i64::from(u32::MAX))))]).await;
                one
            },
            async move {
                let result = commit_with_retries(&mut two, vec![cancel(key)]).await.remove(0);
                (two, result)
            },
        )
        .await;
        match result {
            Outcome::RequestHandled(RequestResult::Done, None) => {
                assert_eq!(one.execution(key).await.status, Status::Cancelled);
            }
            Outcome::RequestHandled(RequestResult::Pending, None) => {
                let record = one.claim(1).await.remove(0);
                assert_eq!((record.execution.key, record.requests.len()), (key, 1));
                one.apply(vec![transition(key, completed()), Write::ClearRequests(key)]).await;
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn racing_cancel_and_end_agree(fixture: &dyn StoreFixture) {
    let (mut one, mut two) = pair(fixture).await;
    for _ in 0..ROUNDS {
        let key = Key::mint(0);
        one.apply(vec![start_running(key)]).await;
        let (transitioned, result);
        ((one, transitioned), (two, result)) = both(
            async move {
                let transitioned =
                    commit_with_retries(&mut one, vec![transition(key, completed())]).await.remove(0);
                (one, transitioned)
            },
            async move {
                let result = commit_with_retries(&mut two, vec![cancel(key)]).await.remove(0);
                (two, result)
            },
        )
        .await;
        let expected = match transitioned {
            // an end never overtakes an accepted cancel
            Outcome::Cancelled => (Status::Cancelled, RequestResult::Pending),
            Outcome::Applied => (Status::Completed, RequestResult::NotApplicable(Status::Completed)),
            other => panic!("{other:?}"),
        };
        assert_eq!(one.execution(key).await.status, expected.0);
        assert_eq!(result, Outcome::RequestHandled(expected.1, None));
    }
}

async fn racing_resume_and_parking_never_miss_each_other(fixture: &dyn StoreFixture) {
    let (mut one, mut two) = pair(fixture).await;
    for _ in 0..ROUNDS {
        let key = Key::mint(0);
        one.apply(vec![start_running(key)]).await;
        assert_eq!(two.commit_one(pause(key)).await, Outcome::RequestHandled(RequestResult::Pending, None));
        let result;
        (one, (two, result)) = both(
            async move {
                commit_with_retries(&mut one, vec![transition(key, paused("why"))]).await;
                one
            },
            async move {
                let result = commit_with_retries(&mut two, vec![resume(key)]).await.remove(0);
                (two, result)
            },
        )
        .await;
        assert_eq!(result, Outcome::RequestHandled(RequestResult::Done, None));
        let [claimed] = &one.claim(10).await[..] else { panic!("the execution continues") };
        assert_eq!((claimed.execution.key, claimed.requests.len()), (key, 0));
        one.apply(vec![transition(key, completed())]).await;
    }
}

async fn crossing_cancels_never_deadlock(fixture: &dyn StoreFixture) {
    let (mut one, mut two) = pair(fixture).await;
    for _ in 0..ROUNDS {
        let keys: Vec<Key> = (0..10).map(|_| Key::mint(0)).collect();
        let mut writes = vec![];
        for chunk in keys.chunks(2) {
            writes.push(start_in(chunk[0], awaiting(&chunk[1..])));
            writes.push(write(child_of(chunk[0], chunk[1], queued())));
        }
        one.apply(writes).await;
        // one worker cancels the parents, the other their children, in opposite order
        let parents: Vec<Write> = keys.iter().step_by(2).map(|key| cancel(*key)).collect();
        let children: Vec<Write> = keys.iter().skip(1).step_by(2).rev().map(|key| cancel(*key)).collect();
        (one, two) = both(
            async move {
                commit_with_retries(&mut one, parents).await;
                one
            },
            async move {
                commit_with_retries(&mut two, children).await;
                two
            },
        )
        .await;
        for key in keys {
            assert_eq!(one.execution(key).await.status, Status::Cancelled);
        }
    }
    assert!(two.claim(100).await.is_empty());
}

async fn racing_claim_and_cancel_agree(fixture: &dyn StoreFixture) {
    let (mut one, mut two) = pair(fixture).await;
    for round in 0..ROUNDS {
        let key = Key::mint(0);
        let state = if round % 2 == 0 { queued() } else { sleeping(at(-1)) };
        one.apply(vec![start_in(key, state)]).await;
        let (claimed, result);
        ((one, claimed), (two, result)) = both(
            async move {
                let claimed = one.claim(10).await;
                (one, claimed)
            },
            async move {
                let result = commit_with_retries(&mut two, vec![cancel(key)]).await.remove(0);
                (two, result)
            },
        )
        .await;
        let row = one.execution(key).await;
        match result {
            Outcome::RequestHandled(RequestResult::Done, None) => {
                assert!(claimed.is_empty());
                assert_eq!((row.status, row.owner), (Status::Cancelled, None));
            }
            Outcome::RequestHandled(RequestResult::Pending, None) => {
                assert_eq!((row.status, row.owner), (Status::Running, Some(one.id)));
                one.apply(vec![transition(key, completed()), Write::ClearRequests(key)]).await;
            }
            other => panic!("{other:?}"),
        }
        // a claim concurrent with the cancel may have skipped the row; a later claim would find it
        assert!(one.claim(10).await.is_empty());
    }
}

async fn racing_takeover_and_flush_agree(fixture: &dyn StoreFixture) {
    let mut survivor = Worker::register(&fixture.second_store().await).await;
    for _ in 0..6 {
        let mut dead = Worker::register(&fixture.store()).await;
        let (old, fresh) = (Key::mint(0), Key::mint(0));
        dead.apply(vec![start_running(old)]).await;
        fixture.mark_dead(dead.id).await;
        let (result, taken_over);
        (result, (survivor, taken_over)) = both(
            async move { dead.try_commit(vec![start_running(fresh), transition(old, completed())]).await },
            async move {
                let taken_over = survivor.take_over_dead_workers().await;
                (survivor, taken_over)
            },
        )
        .await;
        match result {
            Ok(outcomes) => {
                assert_eq!(outcomes, [Outcome::Applied, Outcome::Applied]);
                assert_eq!(survivor.execution(old).await.status, Status::Completed);
                assert_eq!((survivor.execution(fresh).await.status, taken_over), (Status::Queued, 1));
            }
            Err(StoreError::Fenced) => {
                assert!(!survivor.exists(fresh).await);
                assert_eq!((survivor.execution(old).await.status, taken_over), (Status::Queued, 1));
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(survivor.claim(10).await.len(), 1, "the execution can be claimed");
    }
}
