//! The quarantine: executions whose workers die repeatedly without a new checkpoint of the execution.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{
    Claim, Heartbeat, QUARANTINE_STRIKES, Start, Status, Write, next_strikes, quarantine_delay,
};

use crate::fixtures::builders::{
    attempt, cancel, checkpoint, completed, continuation, ended, keys, resume, start, start_queued,
    transition, write,
};
use crate::fixtures::registration::heartbeat_and_take_over;
use crate::{StoreFixture, Worker};

super::cases![
    execution_enters_quarantine_after_three_strikes,
    new_checkpoint_or_attempt_clears_strikes,
    continuation_clears_strikes,
    requeue_counts_no_strike,
    strike_counts_only_for_execution_tried_alone,
    quarantine_delay_grows_with_each_strike,
    quarantined_execution_can_be_cancelled,
    resume_clears_strikes,
    quarantine_claim_respects_workflows_and_versions,
];

/// Marks the worker as dead, lets `survivor` take over its executions, and registers a new worker in its place.
pub(super) async fn replace_dead_worker(fixture: &dyn StoreFixture, worker: &mut Worker, survivor: &Worker) {
    fixture.mark_dead(worker.id).await;
    survivor.take_over_dead_workers().await;
    *worker = Worker::register(&fixture.store()).await;
}

/// Starts the executions and replaces their worker until all of them are in quarantine.
async fn quarantine_all(fixture: &dyn StoreFixture, worker: &mut Worker, survivor: &Worker, all: &[Key]) {
    worker.apply(all.iter().map(|key| start_queued(*key)).collect()).await;
    for strikes in 1..=QUARANTINE_STRIKES {
        assert_eq!(worker.claim(100).await.len(), all.len());
        replace_dead_worker(fixture, worker, survivor).await;
        for key in all {
            assert_eq!(worker.execution(*key).await.strikes, strikes);
        }
    }
    assert!(worker.claim(100).await.is_empty(), "quarantined executions are not ready");
}

async fn execution_enters_quarantine_after_three_strikes(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    assert!(survivor.heartbeat().await.quarantined_until.is_none());
    quarantine_all(fixture, &mut worker, &survivor, &[key]).await;
    let row = worker.execution(key).await;
    assert_eq!((row.status, row.owner, row.recoveries), (Status::Queued, None, 3));
    let reply = survivor.heartbeat().await.reply;
    assert_eq!(
        (reply.has_ready, reply.quarantined_until),
        (false, Some(fixture.now())),
        "the execution may be tried at once"
    );
    let tried = worker.claim_from_quarantine(5).await;
    assert_eq!(tried.len(), 1);
    assert_eq!((tried[0].execution.key, tried[0].execution.strikes), (key, 3));
    assert!(worker.claim_from_quarantine(5).await.is_empty());
    assert!(survivor.heartbeat().await.quarantined_until.is_none());
    worker.apply(vec![transition(key, completed())]).await;
}

async fn new_checkpoint_or_attempt_clears_strikes(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_queued(one), start_queued(two)]).await;
    for n in 1..=5 {
        assert_eq!(worker.claim(10).await.len(), 2, "an execution is in quarantine");
        worker
            .apply(vec![Write::Checkpoint(checkpoint(one, n, "x")), Write::Attempt(attempt(two, 1, n))])
            .await;
        replace_dead_worker(fixture, &mut worker, &survivor).await;
    }
    for key in [one, two] {
        let row = worker.execution(key).await;
        assert_eq!((row.recoveries, row.strikes), (5, 1));
    }
}

/// The last part may have fewer rows than the parts before.
async fn continuation_clears_strikes(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    worker.apply(vec![start_queued(key)]).await;
    assert_eq!(worker.claim(10).await.len(), 1);
    worker.apply((1..=20).map(|n| Write::Checkpoint(checkpoint(key, n, "x"))).collect()).await;
    worker.apply((1..=20).map(|n| Write::Attempt(attempt(key, 21, n))).collect()).await;
    replace_dead_worker(fixture, &mut worker, &survivor).await;
    for part in 1..=4 {
        assert_eq!(worker.claim(10).await.len(), 1, "the execution is in quarantine");
        worker.apply(vec![Write::Checkpoint(continuation(key, part, 20 + part))]).await;
        replace_dead_worker(fixture, &mut worker, &survivor).await;
        assert_eq!(worker.execution(key).await.strikes, 1);
    }
    for strikes in 2..=QUARANTINE_STRIKES {
        assert_eq!(worker.claim(10).await.len(), 1);
        replace_dead_worker(fixture, &mut worker, &survivor).await;
        assert_eq!(worker.execution(key).await.strikes, strikes);
    }
    assert!(worker.claim(10).await.is_empty());
}

async fn requeue_counts_no_strike(fixture: &dyn StoreFixture) {
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

async fn strike_counts_only_for_execution_tried_alone(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let all: [Key; 3] = keys();
    quarantine_all(fixture, &mut worker, &survivor, &all).await;
    assert_eq!(worker.claim_from_quarantine(3).await.len(), 3);
    replace_dead_worker(fixture, &mut worker, &survivor).await;
    for key in all {
        let row = worker.execution(key).await;
        assert_eq!((row.strikes, row.recoveries), (3, 4), "any of the three may have killed the worker");
    }
    let alone = worker.claim_from_quarantine(1).await.remove(0).execution.key;
    replace_dead_worker(fixture, &mut worker, &survivor).await;
    for key in all {
        assert_eq!(worker.execution(key).await.strikes, if key == alone { 4 } else { 3 });
    }
    // an execution that a claim returns alone was tried alone, even if the limit was higher
    let others = worker.claim_from_quarantine(10).await;
    assert_eq!(others.len(), 2, "the execution with the strike waits longer");
    worker.apply(others.iter().map(|record| transition(record.execution.key, completed())).collect()).await;
    fixture.clock().advance(quarantine_delay(4));
    assert_eq!(worker.claim_from_quarantine(10).await[0].execution.key, alone);
    replace_dead_worker(fixture, &mut worker, &survivor).await;
    assert_eq!(worker.execution(alone).await.strikes, 5);
}

async fn quarantine_delay_grows_with_each_strike(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    quarantine_all(fixture, &mut worker, &survivor, &[key]).await;
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
        replace_dead_worker(fixture, &mut worker, &survivor).await;
        strikes = next_strikes(strikes, false, true);
        let (row, reply) = (worker.execution(key).await, survivor.heartbeat().await.reply);
        assert_eq!(row.strikes, strikes);
        // the takeover of the dead worker took time
        let until = reply.quarantined_until.unwrap();
        assert!(until <= fixture.now().plus(quarantine_delay(strikes)), "{until:?}");
        let left = until.since(fixture.now());
        fixture.clock().advance(left);
        assert_eq!(worker.claim_from_quarantine(1).await.len(), 1);
        worker.apply(vec![transition(key, crate::fixtures::builders::queued())]).await;
        worker.claim(1).await;
        replace_dead_worker(fixture, &mut worker, &survivor).await;
        assert_eq!(
            worker.execution(key).await.strikes,
            strikes,
            "no strike after a requeue and a claim that was not from quarantine"
        );
    }
}

async fn quarantined_execution_can_be_cancelled(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    quarantine_all(fixture, &mut worker, &survivor, &[key]).await;
    worker.commit(vec![cancel(key)]).await;
    assert_eq!(worker.execution(key).await.status, Status::Cancelled);
    assert!(worker.heartbeat().await.quarantined_until.is_none());
    assert!(worker.claim_from_quarantine(1).await.is_empty());
}

async fn resume_clears_strikes(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [key] = keys();
    quarantine_all(fixture, &mut worker, &survivor, &[key]).await;
    worker.claim_from_quarantine(1).await;
    worker.apply(vec![transition(key, ended(Status::Failed, "failed"))]).await;
    worker.commit(vec![resume(key)]).await;
    let resumed = worker.claim(1).await.remove(0).execution;
    assert_eq!((resumed.key, resumed.strikes, resumed.recoveries), (key, 0, 3));
    replace_dead_worker(fixture, &mut worker, &survivor).await;
    assert_eq!(worker.execution(key).await.strikes, 1);
}

async fn quarantine_claim_respects_workflows_and_versions(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
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
        replace_dead_worker(fixture, &mut worker, &survivor).await;
    }
    let version = |version: &str| Some(version.into());
    let two = Heartbeat { app_version: version("2"), ..worker.new_heartbeat() };
    assert!(heartbeat_and_take_over(&*worker.store, &two).await.quarantined_until.is_none());
    let claim = |worker: &Worker| Claim { from_quarantine: true, ..worker.new_claim(1) };
    let other = Claim { app_version: version("2"), ..claim(&worker) };
    assert!(worker.try_claim(&other).await.unwrap().is_empty());
    let unknown = Claim { workflows: ["unknown".into()].into(), ..claim(&worker) };
    assert!(worker.try_claim(&unknown).await.unwrap().is_empty());
    let own = Claim { app_version: version("1"), ..claim(&worker) };
    assert_eq!(worker.try_claim(&own).await.unwrap().len(), 1);
}
