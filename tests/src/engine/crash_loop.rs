//! Executions that appear to kill their workers: they are tried alone, and fail in the end.

use stepfast_core::failure::KILLS_WORKERS;
use stepfast_core::key::Key;
use stepfast_core::store::{QUARANTINE_STRIKES, Start, Status};
use stepfast_core::{Error, Payload, Workflow};

use super::support::{Count, Latch, latched_workflow, noop, open_engine, open_second_engine, row, shut_down};
use crate::StoreFixture;
use crate::fixtures::builders::{queued, start, write};
use crate::fixtures::registration::Worker;

super::cases![
    executions_claimed_with_others_complete_after_quarantine,
    execution_fails_after_too_many_dead_workers,
    failed_execution_can_be_resumed,
    quarantined_execution_is_tried_alone_first,
    long_body_keeps_no_other_execution_in_quarantine,
];

/// Queues executions of a workflow, and kills workers: `together` workers that have claimed all of the executions, then
/// `alone` workers per execution that have claimed it alone.
async fn kill_workers<I, O>(
    fixture: &dyn StoreFixture,
    workflow: &Workflow<I, O>,
    all: &[Key],
    together: u32,
    alone: u32,
) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let of = |key| Start {
        workflow: workflow.name().into(),
        input: Payload::encode(&1_i64).unwrap(),
        ..start(key, queued())
    };
    worker.apply(all.iter().map(|key| write(of(*key))).collect()).await;
    for n in 0..together + alone * all.len() as u32 {
        worker.workflows = [workflow.name().into()].into();
        let claimed =
            if n < together { worker.claim(100).await } else { worker.claim_from_quarantine(1).await };
        assert!(!claimed.is_empty());
        fixture.mark_dead(worker.id).await;
        survivor.take_over_dead_workers().await;
        worker = Worker::register(&fixture.store()).await;
    }
    worker.store.close(worker.id).await.unwrap();
    survivor.store.close(survivor.id).await.unwrap();
}

async fn executions_claimed_with_others_complete_after_quarantine(fixture: &dyn StoreFixture) {
    let noop = noop();
    let all: Vec<Key> = (0..20).map(|_| Key::mint(0)).collect();
    kill_workers(fixture, &noop, &all, QUARANTINE_STRIKES, 0).await;
    let (one, _) = open_engine(fixture, |b| b.register(&noop).max_recoveries(1)).await;
    for key in &all {
        assert_eq!(one.get::<i64>(&key.to_string()).await.unwrap().result().await.unwrap(), 1);
    }
    shut_down(one).await;
}

async fn execution_fails_after_too_many_dead_workers(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let key = Key::mint(0);
    kill_workers(fixture, &workflow, &[key], QUARANTINE_STRIKES, 1).await;
    fixture.clock().advance(std::time::Duration::from_secs(60));
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).max_recoveries(1)).await;
    let handle = one.get::<i64>(&key.to_string()).await.unwrap();
    let Err(Error::Failed(failure)) = handle.result().await else { panic!("the execution did not fail") };
    assert_eq!(failure.code(), Some(KILLS_WORKERS));
    assert!(failure.message.contains("3 times in a row") && failure.message.contains("1 times"), "{failure}");
    assert_eq!(count.get(), 0, "the code ran again");
    shut_down(one).await;
}

async fn failed_execution_can_be_resumed(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    latch.open();
    let key = Key::mint(0);
    kill_workers(fixture, &workflow, &[key], QUARANTINE_STRIKES, 0).await;
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).max_recoveries(0)).await;
    let id = key.to_string();
    let handle = one.get::<i64>(&id).await.unwrap();
    assert!(matches!(handle.result().await, Err(Error::Failed(_))));
    one.resume(&id).await.unwrap();
    let handle = one.get::<i64>(&id).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 1);
    shut_down(one).await;
}

async fn quarantined_execution_is_tried_alone_first(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let all: Vec<Key> = (0..6).map(|_| Key::mint(0)).collect();
    kill_workers(fixture, &workflow, &all, QUARANTINE_STRIKES, 0).await;
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    count.wait_for(1).await;
    // other workflows still run
    let noop = noop();
    let (two, _) = open_second_engine(fixture, |b| b.register(&noop)).await;
    two.run(&noop, 1).await.unwrap();
    assert_eq!((count.get(), one.running_count()), (1, 1));
    let mut running = 0;
    for key in &all {
        running += u32::from(row(&one, &key.to_string()).await.status == Status::Running);
    }
    assert_eq!(running, 1);
    latch.open();
    for key in &all {
        assert_eq!(one.get::<i64>(&key.to_string()).await.unwrap().result().await.unwrap(), 1);
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn long_body_keeps_no_other_execution_in_quarantine(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let all: Vec<Key> = (0..6).map(|_| Key::mint(0)).collect();
    kill_workers(fixture, &workflow, &all, QUARANTINE_STRIKES, 0).await;
    let (one, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    for (tried, minute) in [(1, 0), (3, 1), (6, 2)] {
        fixture.clock().advance(std::time::Duration::from_secs(60 * u64::from(minute > 0)));
        count.wait_for(tried).await;
        let heartbeats = store.call_count(crate::faults::fault_store::Call::Heartbeat);
        store.wait_until_called(crate::faults::fault_store::Call::Heartbeat, heartbeats + 2).await;
        assert_eq!(count.get(), tried, "minute {minute}");
    }
    assert!(!latch.is_open());
    latch.open();
    for key in &all {
        assert_eq!(one.get::<i64>(&key.to_string()).await.unwrap().result().await.unwrap(), 1);
    }
    shut_down(one).await;
}
