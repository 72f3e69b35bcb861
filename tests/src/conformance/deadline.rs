//! Deadlines of waiting executions: any worker sees them pass, and they end the execution without a turn in its queue.

use std::time::Duration;

use stepfast_core::Payload;
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{
    Heartbeat, Outcome, Parent, Request, RequestKind, RequestResult, Start, State, Status, Write,
};

use super::queue::declare_queue;
use crate::fixtures::builders::{
    awaiting, completed, keys, parked, placement, queued, running, scheduled, sleeping, start, transition,
    write,
};
use crate::{StoreFixture, Worker};

super::cases![
    waiting_execution_is_reported_when_its_deadline_passes,
    running_execution_is_not_reported_as_expired,
    expired_execution_ends_and_frees_capacity_and_dedup_id,
    expire_request_applies_only_to_expired_executions,
    awaited_children_end_with_expired_parent,
    run_timeout_applies_while_begun_execution_waits,
    expired_executions_are_reported_in_portions,
];

fn until(deadline_at: Timestamp, key: Key, state: State) -> Start {
    Start { deadline_at: Some(deadline_at), ..start(key, state) }
}

/// Returns the expired executions and the next deadline that a heartbeat reports to a worker without workflows.
async fn expired(worker: &Worker) -> (Vec<Key>, Option<Timestamp>) {
    let heartbeat = Heartbeat { workflows: [].into(), ..worker.new_heartbeat() };
    let reply = worker.store.heartbeat(&heartbeat).await.unwrap();
    let mut expired = reply.expired;
    expired.sort_unstable();
    (expired, reply.next_deadline)
}

fn expire(execution: Key, at: Timestamp) -> Write {
    let reason = Payload::encode("too late").unwrap();
    Write::Request(Request { execution, id: Key::mint(0), kind: RequestKind::Expire, at, reason })
}

fn sorted<const N: usize>(mut keys: [Key; N]) -> Vec<Key> {
    keys.sort_unstable();
    keys.into()
}

async fn waiting_execution_is_reported_when_its_deadline_passes(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    declare_queue(fixture, Queue::new("a")).await;
    let now = fixture.now();
    let (at, later) = (now.plus(Duration::from_secs(10)), now.plus(Duration::from_secs(20)));
    let far = now.plus(Duration::from_secs(1_000));
    let all: [Key; 8] = keys();
    worker
        .apply(vec![
            write(Start { placement: placement("a", "", 0), ..until(at, all[0], queued()) }),
            write(until(at, all[1], scheduled(far))),
            write(until(at, all[2], sleeping(far))),
            write(until(at, all[3], parked("parked"))),
            write(until(at, all[4], running())),
            write(until(at, all[5], completed())),
            write(until(later, all[6], queued())),
            write(start(all[7], queued())),
        ])
        .await;
    assert_eq!(expired(&worker).await, (vec![], Some(at)));
    fixture.clock().advance(Duration::from_secs(10));
    let waiting = sorted([all[0], all[1], all[2], all[3]]);
    // the first worker that sends a heartbeat sees them; every worker sees them again until a request ends them
    let (reply, next) = expired(&other).await;
    assert_eq!(reply, waiting);
    assert!(next.is_some_and(|next| next <= later), "{next:?}");
    fixture.clock().advance(Duration::from_secs(6));
    assert_eq!(expired(&worker).await.0, waiting);
    for key in &waiting {
        assert_eq!(
            other.commit_one(expire(*key, fixture.now())).await,
            Outcome::RequestHandled(RequestResult::Done, None)
        );
        assert_eq!(worker.execution(*key).await.status, Status::Cancelled);
    }
    fixture.clock().advance(Duration::from_secs(6));
    assert_eq!(expired(&worker).await.0, [all[6]]);
}

async fn running_execution_is_not_reported_as_expired(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let at = fixture.now().plus(Duration::from_secs(10));
    let [requeued, suspended, recovered, parked_one] = keys();
    let all = [requeued, suspended, recovered, parked_one];
    worker.apply(all.iter().map(|key| write(until(at, *key, queued()))).collect()).await;
    assert_eq!(worker.claim_keys(9).await.len(), 4);
    fixture.clock().advance(Duration::from_secs(20));
    assert_eq!(expired(&other).await, (vec![], None));
    for key in all {
        let not_applicable = Outcome::RequestHandled(RequestResult::NotApplicable(Status::Running), None);
        assert_eq!(other.commit_one(expire(key, fixture.now())).await, not_applicable);
        assert!(worker.record(key).await.requests.is_empty());
    }
    // executions that no worker runs any more are reported
    let far = fixture.now().plus(Duration::from_secs(100));
    worker
        .apply(vec![
            transition(requeued, queued()),
            transition(suspended, sleeping(far)),
            transition(parked_one, parked("parked")),
        ])
        .await;
    assert_eq!(expired(&other).await.0, sorted([requeued, suspended, parked_one]));
    fixture.mark_dead(worker.id).await;
    other.take_over_dead_workers().await;
    fixture.clock().advance(Duration::from_secs(6));
    assert_eq!(expired(&other).await.0, sorted(all));
    assert_eq!(other.claim_keys(9).await.len(), 2);
    fixture.clock().advance(Duration::from_secs(6));
    assert_eq!(expired(&other).await.0, sorted([suspended, parked_one]));
}

async fn expired_execution_ends_and_frees_capacity_and_dedup_id(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").max_depth(1)).await;
    let now = fixture.now();
    let at = now.plus(Duration::from_secs(10));
    let [first, second, third] = keys();
    let of = |key: Key, deadline_at| Start {
        placement: placement("a", "", 0),
        dedup_id: Some("the only".into()),
        ..until(deadline_at, key, queued())
    };
    assert_eq!(worker.commit_one(write(of(first, at))).await, Outcome::Applied);
    let rejected = worker.commit_one(write(of(second, at))).await;
    assert!(matches!(rejected, Outcome::Deduplicated(_) | Outcome::Full), "{rejected:?}");
    fixture.clock().advance(Duration::from_secs(10));
    assert_eq!(expired(&worker).await.0, [first]);
    assert_eq!(
        worker.commit_one(expire(first, fixture.now())).await,
        Outcome::RequestHandled(RequestResult::Done, None)
    );
    let row = worker.execution(first).await;
    assert_eq!((row.status, row.ended_at), (Status::Cancelled, Some(fixture.now())));
    assert_eq!(row.outcome.decode::<String>().unwrap(), "too late");
    assert_eq!(expired(&worker).await, (vec![], None));
    // its capacity and its dedup_id are free
    assert_eq!(worker.commit_one(write(of(third, at))).await, Outcome::Applied);
    assert_eq!(worker.claim_keys(9).await, [third]);
}

async fn expire_request_applies_only_to_expired_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = fixture.now();
    let at = now.plus(Duration::from_secs(10));
    let [early, never, ended, resumed] = keys();
    worker
        .apply(vec![
            write(until(at, early, queued())),
            write(start(never, queued())),
            write(until(at, ended, completed())),
            write(until(at, resumed, queued())),
        ])
        .await;
    let not_applicable = |status| Outcome::RequestHandled(RequestResult::NotApplicable(status), None);
    for (key, status) in [(early, Status::Queued), (never, Status::Queued), (ended, Status::Completed)] {
        let outcome = worker.commit_one(expire(key, at.minus(Duration::from_micros(1)))).await;
        assert_eq!(outcome, not_applicable(status));
        assert_eq!(worker.execution(key).await.status, status);
    }
    assert_eq!(worker.commit_one(expire(Key::mint(0), at)).await, Outcome::NotFound);
    // a resumed execution loses its deadline
    fixture.clock().advance(Duration::from_secs(10));
    assert_eq!(
        worker.commit_one(expire(resumed, at)).await,
        Outcome::RequestHandled(RequestResult::Done, None)
    );
    let resume = Request {
        execution: resumed,
        id: Key::mint(0),
        kind: RequestKind::Resume,
        at,
        reason: Payload::empty(),
    };
    assert_eq!(
        worker.commit_one(Write::Request(resume)).await,
        Outcome::RequestHandled(RequestResult::Done, None)
    );
    assert_eq!(worker.commit_one(expire(resumed, at)).await, not_applicable(Status::Queued));
    assert_eq!(expired(&worker).await.0, [early]);
    assert_eq!(
        worker.commit_one(expire(early, at)).await,
        Outcome::RequestHandled(RequestResult::Done, None)
    );
    fixture.clock().advance(Duration::from_secs(6));
    assert_eq!(expired(&worker).await, (vec![], None));
}

async fn awaited_children_end_with_expired_parent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let at = fixture.now().plus(Duration::from_secs(10));
    let [grandparent, parent, waits, runs, detached] = keys();
    let child = |key, of, is_detached, state| {
        write(Start { parent: Some(Parent { key: of, is_detached }), root: grandparent, ..start(key, state) })
    };
    let mut expiring = until(at, parent, awaiting(&[waits, runs]));
    expiring.parent = Some(Parent { key: grandparent, is_detached: false });
    expiring.root = grandparent;
    worker.apply(vec![write(start(grandparent, awaiting(&[parent])))]).await;
    worker.apply(vec![write(expiring)]).await;
    worker
        .apply(vec![
            child(waits, parent, false, queued()),
            child(runs, parent, false, running()),
            child(detached, parent, true, queued()),
        ])
        .await;
    fixture.clock().advance(Duration::from_secs(10));
    let outcome = worker.commit_one(expire(parent, fixture.now())).await;
    assert_eq!(outcome, Outcome::RequestHandled(RequestResult::Done, Some(grandparent)));
    for (key, status) in [
        (grandparent, Status::Waiting),
        (parent, Status::Cancelled),
        (waits, Status::Cancelled),
        (runs, Status::Running),
        (detached, Status::Queued),
    ] {
        assert_eq!(worker.execution(key).await.status, status);
    }
    assert_eq!(worker.record(runs).await.requests, [RequestKind::Cancel]);
}

async fn run_timeout_applies_while_begun_execution_waits(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let run_timeout = Some(Duration::from_secs(10));
    worker.apply(vec![write(Start { run_timeout, ..start(key, queued()) })]).await;
    assert_eq!(expired(&worker).await, (vec![], None));
    assert_eq!(worker.claim_keys(9).await, [key]);
    let at = fixture.now().plus(Duration::from_secs(10));
    worker.apply(vec![transition(key, queued())]).await;
    assert_eq!(expired(&worker).await, (vec![], Some(at)));
    fixture.clock().advance(Duration::from_secs(10));
    assert_eq!(expired(&worker).await.0, [key]);
}

async fn expired_executions_are_reported_in_portions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let at = fixture.now().plus(Duration::from_secs(10));
    let all: Vec<Key> = (0..1_200).map(|_| Key::mint(0)).collect();
    worker.apply(all.iter().map(|key| write(until(at, *key, queued()))).collect()).await;
    fixture.clock().advance(Duration::from_secs(10));
    let mut ended = 0;
    for _ in 0..3 {
        let (reply, _) = expired(&worker).await;
        ended += reply.len();
        worker.commit(reply.iter().map(|key| expire(*key, fixture.now())).collect()).await;
    }
    assert_eq!((ended, expired(&worker).await), (1_200, (vec![], None)));
}
