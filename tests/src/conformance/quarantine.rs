//! The quarantine: executions whose workers die, again and again, without a new checkpoint of them.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{
    Claim, Heartbeat, QUARANTINE_STRIKES, Start, Status, Write, next_strikes, quarantine_delay,
};

use crate::fixtures::builders::{
    attempt, cancel, checkpoint, completed, ended, keys, transition, resume, start, start_queued, write,
};
use crate::fixtures::registration::heartbeat_and_take_over;
use crate::{StoreFixture, Worker};

super::cases![
    three_strikes_lead_into_it,
    a_new_checkpoint_or_attempt_clears_them,
    handing_back_is_no_strike,
    only_who_was_tried_alone_is_blamed,
    it_is_left_later_each_time,
    it_can_be_cancelled_there,
    resuming_forgets_the_strikes,
    a_claim_from_it_heeds_workflows_and_versions,
];

/// Loses the worker, which has claimed or started what it runs; another one takes its place.
async fn lose(fixture: &dyn StoreFixture, worker: &mut Worker, looker: &Worker) {
    fixture.mark_dead(worker.id).await;
    looker.take_over_dead_workers().await;
    *worker = Worker::register(&fixture.store()).await;
}

/// Loses its worker until the execution is in quarantine.
async fn into_quarantine(fixture: &dyn StoreFixture, worker: &mut Worker, looker: &Worker, all: &[Key]) {
    worker.apply(all.iter().map(|key| start_queued(*key)).collect()).await;
    for strikes in 1..=QUARANTINE_STRIKES {
        assert_eq!(worker.claim(100).await.len(), all.len());
        lose(fixture, worker, looker).await;
        for key in all {
            assert_eq!(worker.execution(*key).await.strikes, strikes);
        }
    }
    assert!(worker.claim(100).await.is_empty(), "they are not ready any more");
}

async fn three_strikes_lead_into_it(fixture: &dyn StoreFixture) {
    let looker = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    assert!(looker.heartbeat().await.quarantined_until.is_none());
    into_quarantine(fixture, &mut worker, &looker, &[key]).await;
    let row = worker.execution(key).await;
    assert_eq!((row.status, row.owner, row.recoveries), (Status::Queued, None, 3));
    let seen = looker.heartbeat().await.reply;
    assert_eq!(
        (seen.has_ready, seen.quarantined_until),
        (false, Some(fixture.now())),
        "it may be tried at once"
    );
    let tried = worker.claim_from_quarantine(5).await;
    assert_eq!(tried.len(), 1);
    assert_eq!((tried[0].execution.key, tried[0].execution.strikes), (key, 3));
    assert!(worker.claim_from_quarantine(5).await.is_empty());
    assert!(looker.heartbeat().await.quarantined_until.is_none());
    worker.apply(vec![transition(key, completed())]).await;
}

async fn a_new_checkpoint_or_attempt_clears_them(fixture: &dyn StoreFixture) {
    let looker = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_queued(one), start_queued(two)]).await;
    for n in 1..=5 {
        assert_eq!(worker.claim(10).await.len(), 2, "neither ever gets into quarantine");
        worker
            .apply(vec![Write::Checkpoint(checkpoint(one, n, "x")), Write::Attempt(attempt(two, 1, n))])
            .await;
        lose(fixture, &mut worker, &looker).await;
    }
    for key in [one, two] {
        let row = worker.execution(key).await;
        assert_eq!((row.recoveries, row.strikes), (5, 1));
    }
}

async fn handing_back_is_no_strike(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    worker.apply(vec![start_queued(key)]).await;
    for _ in 0..5 {
        assert_eq!(worker.claim_keys(1).await, [key]);
        worker.store.close(worker.id).await.unwrap();
        worker = Worker::register(&fixture.store()).await;
    }
    let row = worker.execution(key).await;
    assert_eq!((row.recoveries, row.strikes), (0, 0));
}

async fn only_who_was_tried_alone_is_blamed(fixture: &dyn StoreFixture) {
    let looker = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let all: [Key; 3] = keys();
    into_quarantine(fixture, &mut worker, &looker, &all).await;
    assert_eq!(worker.claim_from_quarantine(3).await.len(), 3);
    lose(fixture, &mut worker, &looker).await;
    for key in all {
        let row = worker.execution(key).await;
        assert_eq!((row.strikes, row.recoveries), (3, 4), "any of the three may have done it");
    }
    let alone = worker.claim_from_quarantine(1).await.remove(0).execution.key;
    lose(fixture, &mut worker, &looker).await;
    for key in all {
        assert_eq!(worker.execution(key).await.strikes, if key == alone { 4 } else { 3 });
    }
    // a claim that could have had more, and found one, has it alone too
    let others = worker.claim_from_quarantine(10).await;
    assert_eq!(others.len(), 2, "the one that is blamed has to wait");
    worker.apply(others.iter().map(|record| transition(record.execution.key, completed())).collect()).await;
    fixture.clock().advance(quarantine_delay(4));
    assert_eq!(worker.claim_from_quarantine(10).await[0].execution.key, alone);
    lose(fixture, &mut worker, &looker).await;
    assert_eq!(worker.execution(alone).await.strikes, 5);
}

async fn it_is_left_later_each_time(fixture: &dyn StoreFixture) {
    let looker = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    into_quarantine(fixture, &mut worker, &looker, &[key]).await;
    let mut strikes = QUARANTINE_STRIKES;
    for seconds in [0, 1, 2, 4, 8, 16, 32, 60, 60] {
        let delay = Duration::from_secs(seconds);
        assert_eq!(quarantine_delay(strikes), delay);
        if seconds > 0 {
            fixture.clock().advance(delay.checked_sub(Duration::from_micros(1)).unwrap());
            assert!(worker.claim_from_quarantine(1).await.is_empty(), "after {strikes} strikes");
            fixture.clock().advance(Duration::from_micros(1));
        }
        assert_eq!(worker.claim_from_quarantine(1).await.len(), 1);
        lose(fixture, &mut worker, &looker).await;
        strikes = next_strikes(strikes, false, true);
        let (row, seen) = (worker.execution(key).await, looker.heartbeat().await.reply);
        assert_eq!(row.strikes, strikes);
        // looking for the lost worker took time
        let until = seen.quarantined_until.unwrap();
        assert!(until <= fixture.now().plus(quarantine_delay(strikes)), "{until:?}");
        let left = until.since(fixture.now());
        fixture.clock().advance(left);
        assert_eq!(worker.claim_from_quarantine(1).await.len(), 1);
        worker.apply(vec![transition(key, crate::fixtures::builders::queued())]).await;
        worker.claim(1).await;
        lose(fixture, &mut worker, &looker).await;
        assert_eq!(worker.execution(key).await.strikes, strikes, "handed back, and claimed among others");
    }
}

async fn it_can_be_cancelled_there(fixture: &dyn StoreFixture) {
    let looker = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    into_quarantine(fixture, &mut worker, &looker, &[key]).await;
    worker.commit(vec![cancel(key)]).await;
    assert_eq!(worker.execution(key).await.status, Status::Cancelled);
    assert!(worker.heartbeat().await.quarantined_until.is_none());
    assert!(worker.claim_from_quarantine(1).await.is_empty());
}

async fn resuming_forgets_the_strikes(fixture: &dyn StoreFixture) {
    let looker = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    into_quarantine(fixture, &mut worker, &looker, &[key]).await;
    worker.claim_from_quarantine(1).await;
    worker.apply(vec![transition(key, ended(Status::Failed, "given up"))]).await;
    worker.commit(vec![resume(key)]).await;
    let again = worker.claim(1).await.remove(0).execution;
    assert_eq!((again.key, again.strikes, again.recoveries), (key, 0, 3));
    lose(fixture, &mut worker, &looker).await;
    assert_eq!(worker.execution(key).await.strikes, 1);
}

async fn a_claim_from_it_heeds_workflows_and_versions(fixture: &dyn StoreFixture) {
    let looker = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    worker
        .apply(vec![write(Start {
            app_version: Some("1".into()),
            ..start(key, crate::fixtures::builders::queued())
        })])
        .await;
    for _ in 0..QUARANTINE_STRIKES {
        worker.claim(1).await;
        lose(fixture, &mut worker, &looker).await;
    }
    let version = |version: &str| Some(version.into());
    let two = Heartbeat { app_version: version("2"), ..worker.new_heartbeat() };
    assert!(heartbeat_and_take_over(&*worker.store, &two).await.quarantined_until.is_none());
    let claim = |worker: &Worker| Claim { from_quarantine: true, ..worker.new_claim(1) };
    let other = Claim { app_version: version("2"), ..claim(&worker) };
    assert!(worker.try_claim(&other).await.unwrap().is_empty());
    let nobody = Claim { workflows: ["nobody".into()].into(), ..claim(&worker) };
    assert!(worker.try_claim(&nobody).await.unwrap().is_empty());
    let own = Claim { app_version: version("1"), ..claim(&worker) };
    assert_eq!(worker.try_claim(&own).await.unwrap().len(), 1);
}
