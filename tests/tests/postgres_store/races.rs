//! Races: pairs of transactions in chosen interleavings.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::clock::Timestamp;
use stepfast_core::queue::{Placement, Queue, QueueChange, QueueRow};
use stepfast_core::store::{
    Claim, ClaimReply, Message, Outcome, Start, State, Status, StoreError, Transition, Write,
};
use stepfast_core::{Key, Payload, Store};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::support::*;

/// Makes every insert into `table` wait until the returned connection releases it.
async fn lock_table(db: &Fixture, table: &str) -> Client {
    lock_at_moment(db, &format!("AFTER INSERT ON {table}")).await
}

/// Makes every `moment` of a trigger wait until the returned connection releases it.
async fn lock_at_moment(db: &Fixture, moment: &str) -> Client {
    let holder = client(&db.schema).await;
    // the process id of the connection is unique among the tests
    let lock: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    db.sql
        .batch_execute(&format!(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_advisory_xact_lock({lock}); RETURN NEW; END $$; \
             CREATE TRIGGER hold {moment} EXECUTE FUNCTION hold()"
        ))
        .await
        .unwrap();
    holder.execute("SELECT pg_advisory_lock($1::integer)", &[&lock]).await.unwrap();
    holder
}

async fn release(holder: &Client) {
    holder.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
}

async fn long_timeouts() -> Arc<Fixture> {
    let (timeout, lease) = (Duration::from_mins(1), Duration::from_mins(10));
    Arc::new(Fixture::with(|options| options.lock_timeout(timeout).lease(lease)).await)
}

#[tokio::test]
async fn takeover_waits_for_inflight_flush_and_finds_its_rows() {
    let db = long_timeouts().await;
    let (old, inflight) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(old, RUNNING)]).await;
    let holder = lock_table(&db, "checkpoints").await;
    let flushing = tokio::spawn({
        let db = db.clone();
        async move { db.commit(&db.flush(vec![start(inflight, RUNNING), checkpoint(inflight, 1)])).await }
    });
    wait_until_blocked(&db.sql, "INSERT INTO checkpoints").await;
    let (other, worker) = (db.store.clone(), db.worker.worker);
    let taking = tokio::spawn(async move { other.end_registration(worker).await });
    wait_until_blocked(&db.sql, "SELECT lane FROM lanes").await;
    assert!(!taking.is_finished() && !flushing.is_finished());
    release(&holder).await;
    assert_eq!(flushing.await.unwrap().unwrap(), []);
    assert!(taking.await.unwrap().unwrap());
    assert_eq!(db.store.requeue(worker).await.unwrap(), 2);
    for key in [old, inflight] {
        let row = db.load(key).await.unwrap().execution;
        assert_eq!((row.status, row.owner, row.recoveries), (Status::Queued, None, 1));
    }
    let fenced_flush = db.commit(&db.flush(vec![transition(inflight, ended(Status::Completed))])).await;
    assert!(matches!(fenced_flush, Err(StoreError::Fenced)), "{fenced_flush:?}");
}

#[tokio::test]
async fn takeover_requeues_nothing_before_the_fence() {
    let db = long_timeouts().await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    let observer = db.store.register(1, &worker_info(&[])).await.unwrap();
    db.clock.advance(Duration::from_hours(1));
    for is_dead_found in [false, false, true] {
        db.store.renew(observer.worker, observer.epoch).await.unwrap();
        let maintenance = db.store.maintain(observer.worker, observer.epoch).await.unwrap();
        assert_eq!(maintenance.has_dead_workers, is_dead_found);
    }
    // as a flush under way holds it
    let mut other_session = client(&db.schema).await;
    let lock = other_session.transaction().await.unwrap();
    let lanes = "SELECT FROM lanes WHERE worker_id = $1 FOR UPDATE";
    lock.execute(lanes, &[&db.worker.worker.0]).await.unwrap();
    let (store, worker) = (db.store.clone(), observer.worker);
    let taking_over = tokio::spawn(async move { store.take_over(worker).await });
    wait_until_blocked(&db.sql, "SELECT lane FROM lanes").await;
    assert_eq!(db.status(key).await, Status::Running);
    lock.rollback().await.unwrap();
    assert_eq!(taking_over.await.unwrap().unwrap(), 1);
    assert_eq!(db.status(key).await, Status::Queued);
}

/// Both messages have the same id. One is kept, and the other is sent to the execution.
#[tokio::test]
async fn message_beside_a_kept_one_with_its_id_is_not_sent() {
    let db = long_timeouts().await;
    let (receiver, address) = (Key::mint(0), Key::address_of("r", 0));
    db.write(vec![start(receiver, RUNNING)]).await;
    let send = |execution: Key, address: Option<Key>| {
        let (topic, id, sent_at) = ("t".into(), Some("one".into()), Timestamp::from_micros(7));
        let value = Payload::encode(&1).unwrap();
        Write::Send(Message { execution, address, topic, id, value, sent_at, is_owned: false }.into())
    };
    let holder = lock_table(&db, "messages").await;
    let keeping = spawn_flush(&db, 0, vec![send(address, None)]);
    wait_until_blocked(&db.sql, "INSERT INTO message_ids").await;
    let sending = spawn_flush(&db, 1, vec![send(receiver, Some(address))]);
    let waits_for_other = "SELECT count(*) FROM pg_locks AS w JOIN pg_locks AS r USING (pid) \
                           WHERE NOT w.granted AND w.locktype = 'transactionid' \
                             AND r.relation = 'message_ids'::regclass";
    while db.sql.query_one(waits_for_other, &[]).await.unwrap().get::<_, i64>(0) == 0 {}
    release(&holder).await;
    assert_eq!(keeping.await.unwrap(), []);
    assert_eq!(sending.await.unwrap(), [(0, Outcome::AlreadySent)]);
    let pending = db.store.messages(&[(receiver, "t".into()), (address, "t".into())]).await.unwrap();
    assert_eq!(pending.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1]);
}

#[tokio::test]
async fn slots_of_a_fenced_worker_count_until_its_executions_are_requeued() {
    let db = Fixture::new().await;
    let queue = Queue::new("a").concurrency(1);
    let change = QueueChange { queue, is_paused: false, expected_version: 0 };
    db.store.change_queue(&change).await.unwrap();
    let [first, second] = [(); 2].map(|()| Key::mint(0));
    for key in [first, second] {
        let mut write = start(key, QUEUED);
        if let Write::Start(start) = &mut write {
            start.placement = Some(Placement { queue: "a".into(), key: "".into(), priority: 0 }.into());
        }
        db.write(vec![write]).await;
    }
    assert_eq!(db.take(9).await.len(), 1);
    let other = db.other().await;
    let registration = other.register(3, &worker_info(&[])).await.unwrap();
    let claim =
        |number| Claim { worker: registration.worker, epoch: registration.epoch, number, ..db.claim(9) };
    assert!(other.end_registration(db.worker.worker).await.unwrap());
    assert_eq!(other.claim(&claim(1)).await.unwrap().records, [], "the first execution may still run");
    assert_eq!(other.requeue(db.worker.worker).await.unwrap(), 1);
    let claimed = other.claim(&claim(1)).await.unwrap().records;
    assert_eq!(claimed.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [first]);
}

#[tokio::test]
async fn concurrent_takeovers_requeue_every_execution() {
    let db = long_timeouts().await;
    let keys: Vec<Key> = (0..64).map(|_| Key::mint(0)).collect();
    db.write(keys.iter().map(|key| start(*key, RUNNING)).collect()).await;
    let moment = format!("BEFORE UPDATE ON executions FOR EACH ROW WHEN (NEW.key = '{}')", keys[0]);
    let holder = lock_at_moment(&db, &moment).await;
    let (one, other, worker) = (db.other().await, db.other().await, db.worker.worker);
    assert!(one.end_registration(worker).await.unwrap());
    let slow = tokio::spawn(async move { one.requeue(worker).await });
    // it has locked the assignment, and is blocked at the first execution: the other takeover leaves both to it
    wait_until_blocked(&db.sql, "WITH listed AS MATERIALIZED").await;
    assert!(other.end_registration(worker).await.unwrap());
    assert_eq!(other.requeue(worker).await.unwrap(), 0);
    assert_eq!(db.count("workers").await, 1);
    release(&holder).await;
    assert_eq!(slow.await.unwrap().unwrap(), 64);
    for key in keys {
        assert_eq!(db.status(key).await, Status::Queued);
    }
    assert_eq!((db.count("workers").await, db.count("assignments").await), (0, 0));
}

#[tokio::test]
async fn interrupted_takeover_is_finished_after_next_heartbeat() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    assert!(db.store.end_registration(db.worker.worker).await.unwrap());
    let other = db.other().await;
    let observer = other.register(1, &worker_info(&[])).await.unwrap();
    let reply = heartbeat_and_take_over(&other, &heartbeat_request(&observer)).await;
    assert_eq!((reply.recovered, reply.has_ready), (1, true));
    assert_eq!(db.status(key).await, Status::Queued);
    assert!(db.heartbeat().await.is_fenced);
}

#[tokio::test]
async fn child_that_finishes_during_suspension_wakes_parent() {
    let db = long_timeouts().await;
    let (parent, of) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, RUNNING), child(of, parent, false, RUNNING)]).await;
    let holder = lock_table(&db, "waits").await;
    let waiting_flush = tokio::spawn({
        let db = db.clone();
        async move { db.commit(&db.flush(vec![transition(parent, waiting(None, &[of]))])).await }
    });
    wait_until_blocked(&db.sql, "INSERT INTO waits").await;
    // the child finishes on another lane: neither transaction sees the other
    let flush = db.flush_on(1, vec![transition(of, ended(Status::Completed))]);
    assert_eq!(db.commit(&flush).await.unwrap(), []);
    // the Wake of the child's worker does not wait for the suspension, and finds no waiting parent
    let flush = db.flush_on(1, vec![Write::Wake(parent)]);
    assert_eq!(db.commit(&flush).await.unwrap(), [(0, Outcome::NotFound)]);
    release(&holder).await;
    assert_eq!(waiting_flush.await.unwrap().unwrap(), []);
    // the Wake of the parent's worker follows the suspension
    assert_eq!(db.outcome(Write::Wake(parent)).await, Outcome::Applied);
    assert_eq!(db.status(parent).await, Status::Queued);
    // a repeated Wake finds the parent woken already
    assert_eq!(db.outcome(Write::Wake(parent)).await, Outcome::NotFound);
    assert_eq!(db.count("ready").await, 1);
}

#[tokio::test]
async fn locked_parent_that_runs_does_not_block_the_end_of_its_child() {
    let db = long_timeouts().await;
    let (parent, of) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, RUNNING), child(of, parent, false, RUNNING)]).await;
    let mut other_session = client(&db.schema).await;
    let lock = other_session.transaction().await.unwrap();
    lock.execute("SELECT FROM executions WHERE key = $1 FOR UPDATE", &[&uuid(parent)]).await.unwrap();
    let flush = db.flush(vec![transition(of, ended(Status::Completed)), Write::Wake(parent)]);
    assert_eq!(db.commit(&flush).await.unwrap(), [(1, Outcome::NotFound)]);
    lock.rollback().await.unwrap();
}

#[tokio::test]
async fn wake_that_waited_for_a_lock_checks_the_status_again() {
    let db = long_timeouts().await;
    let (parent, of) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, waiting(None, &[of])), child(of, parent, false, ended(Status::Completed))])
        .await;
    let mut other_session = client(&db.schema).await;
    let lock = other_session.transaction().await.unwrap();
    // another worker wakes the parent at the same moment
    lock.execute("UPDATE executions SET status = 1 WHERE key = $1", &[&uuid(parent)]).await.unwrap();
    let waking = tokio::spawn({
        let db = db.clone();
        async move { db.commit(&db.flush(vec![Write::Wake(parent)])).await }
    });
    wait_until_blocked(&db.sql, "WITH RECURSIVE tree").await;
    lock.commit().await.unwrap();
    assert_eq!(waking.await.unwrap().unwrap(), [(0, Outcome::NotFound)]);
    assert_eq!(db.count("ready").await, 0);
}

#[tokio::test]
async fn foreign_transaction_blocks_only_conflicting_item() {
    let db = Fixture::with(|options| options.lock_timeout(Duration::from_millis(50))).await;
    let other = client(&db.schema).await;
    other
        .batch_execute(
            "BEGIN; INSERT INTO executions (created_at, status, key, workflow, workflow_id, input) \
             VALUES (now(), 1, gen_random_uuid(), 'order', 'outbox', '')",
        )
        .await
        .unwrap();
    let (blocked, free) = (Key::mint(0), Key::mint(0));
    let flush = db.flush(vec![start_id(blocked, "outbox", RUNNING), start(free, RUNNING)]);
    let error = db.commit(&flush).await.unwrap_err();
    assert!(matches!(&error, StoreError::Blocked(reason) if reason.contains("executions")), "{error}");
    assert_eq!(db.load(free).await, None);
    assert_eq!(db.write(vec![start(free, RUNNING)]).await, []);
    other.batch_execute("COMMIT").await.unwrap();
    let outcomes = db.write(vec![start_id(blocked, "outbox", RUNNING)]).await;
    assert!(matches!(outcomes[..], [(0, Outcome::Duplicate(_))]), "{outcomes:?}");
}

#[tokio::test]
async fn descendants_started_while_cancel_waits_are_cancelled() {
    let db = long_timeouts().await;
    let (parent, fresh) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, RUNNING)]).await;
    let holder = lock_table(&db, "waits").await;
    let suspending = tokio::spawn({
        let db = db.clone();
        async move {
            let writes =
                vec![child(fresh, parent, false, QUEUED), transition(parent, waiting(None, &[fresh]))];
            db.commit(&db.flush(writes)).await
        }
    });
    wait_until_blocked(&db.sql, "INSERT INTO waits").await;
    let cancelling = tokio::spawn({
        let db = db.clone();
        async move { db.commit(&db.flush_on(1, vec![cancel(parent)])).await }
    });
    wait_until_blocked(&db.sql, "WITH RECURSIVE tree").await;
    release(&holder).await;
    assert_eq!(suspending.await.unwrap().unwrap(), []);
    cancelling.await.unwrap().unwrap();
    assert_eq!(db.status(parent).await, Status::Cancelled);
    assert_eq!(db.status(fresh).await, Status::Cancelled);
    assert_eq!((db.count("ready").await, db.count("waits").await), (0, 0));
}

#[tokio::test]
async fn crossed_cancels_and_transitions_do_not_deadlock() {
    let db = long_timeouts().await;
    let (a, b) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(a, RUNNING), start(b, RUNNING)]).await;
    for _ in 0..20 {
        let left = db.flush_on(0, vec![cancel(b), transition(a, RUNNING)]);
        let right = db.flush_on(1, vec![cancel(a), transition(b, RUNNING)]);
        let (left, right) = tokio::join!(db.commit(&left), db.commit(&right));
        assert_eq!((left.unwrap().len(), right.unwrap().len()), (1, 1));
    }
}

#[tokio::test]
async fn starts_of_same_ids_on_two_lanes_do_not_deadlock() {
    let db = long_timeouts().await;
    for round in 0..20 {
        let ids: Vec<String> = (0..50).map(|i| format!("{round}-{i}")).collect();
        let starts = |ids: Vec<&String>| ids.iter().map(|id| start_id(Key::mint(0), id, QUEUED)).collect();
        let left = db.flush_on(0, starts(ids.iter().collect()));
        let right = db.flush_on(1, starts(ids.iter().rev().collect()));
        let (left, right) = tokio::join!(db.commit(&left), db.commit(&right));
        assert_eq!(left.unwrap().len() + right.unwrap().len(), 50);
    }
    assert_eq!(db.count("ready").await, 1000);
}

/// Begins a claim, and returns it once it waits at a trigger of `assignments`, where it holds all its locks.
async fn begin_claim(db: &Arc<Fixture>, claim: Claim) -> JoinHandle<Result<ClaimReply, StoreError>> {
    let claiming = tokio::spawn({
        let db = db.clone();
        async move { db.store.claim(&claim).await }
    });
    wait_until_blocked(&db.sql, "INSERT INTO assignments").await;
    claiming
}

#[tokio::test]
async fn claim_waits_for_claim_of_same_queue() {
    let db = long_timeouts().await;
    let keys: Vec<Key> = (0..4).map(|_| Key::mint(0)).collect();
    db.write(keys.iter().map(|key| start(*key, QUEUED)).collect()).await;
    let other = db.other().await;
    let second = other.register(3, &worker_info(&[])).await.unwrap();
    let mine = db.claim(2);
    let theirs = Claim { worker: second.worker, epoch: second.epoch, ..mine.clone() };
    let holder = lock_table(&db, "assignments").await;
    let claiming = begin_claim(&db, mine).await;
    let waiting = tokio::spawn(async move { other.claim(&theirs).await });
    wait_until_blocked(&db.sql, "SELECT pg_advisory_xact_lock").await;
    release(&holder).await;
    let taken = |claimed: ClaimReply| -> Vec<Key> {
        claimed.records.iter().map(|record| record.execution.key).collect()
    };
    assert_eq!(taken(claiming.await.unwrap().unwrap()), keys[..2]);
    assert_eq!(taken(waiting.await.unwrap().unwrap()), keys[2..]);
}

/// Waits until a claim waits for the turn of another claim.
async fn wait_until_turn_is_awaited(db: &Fixture) {
    let query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                 AND classid::bigint = (hashtext('stepfast.' || current_schema())::bigint & 4294967295)";
    loop {
        let waiting: i64 = db.sql.query_one(query, &[]).await.unwrap().get(0);
        if waiting > 0 {
            return;
        }
    }
}

/// A claim that found nothing elsewhere waits for the queue that another claim has locked: what that one leaves is not
/// announced again.
#[tokio::test]
async fn claim_that_finds_nothing_else_waits_for_a_locked_queue() {
    let db = long_timeouts().await;
    let paused = QueueChange { queue: Queue::new("mails"), is_paused: true, expected_version: 0 };
    db.store.change_queue(&paused).await.unwrap().unwrap();
    let put = |key| Write::Start(Box::new(Start { placement: placement(), ..start_of(key, QUEUED) }));
    let keys: Vec<Key> = (0..4).map(|_| Key::mint(0)).collect();
    let queued = keys.iter().map(|key| start(*key, QUEUED)).chain([put(Key::mint(0))]);
    db.write(queued.collect()).await;
    let other = db.other().await;
    let second = other.register(3, &worker_info(&[])).await.unwrap();
    let mine = db.claim(2);
    let theirs = Claim { worker: second.worker, epoch: second.epoch, ..mine.clone() };
    let holder = lock_table(&db, "assignments").await;
    let claiming = begin_claim(&db, mine).await;
    let mut waiting = tokio::spawn(async move { other.claim(&theirs).await });
    tokio::select! {
        () = wait_until_turn_is_awaited(&db) => {}
        reply = &mut waiting => panic!("{reply:?}"),
    }
    release(&holder).await;
    assert_eq!(claiming.await.unwrap().unwrap().records.len(), 2);
    assert_eq!(waiting.await.unwrap().unwrap().records.len(), 2);
}

/// A claim of a queue without limits waits for a change of the queue. An exclusive wait would keep the other claims from
/// the queue, which then wait in the same way, and each in vain for the turn of another.
#[tokio::test]
async fn claim_that_waits_for_a_change_excludes_no_other_claim() {
    let db = long_timeouts().await;
    let queue = QueueChange { queue: Queue::new("mails"), is_paused: false, expected_version: 0 };
    db.store.change_queue(&queue).await.unwrap().unwrap();
    let key = Key::mint(0);
    db.write(vec![Write::Start(Box::new(Start { placement: placement(), ..start_of(key, QUEUED) }))]).await;
    let changing = client(&db.schema).await;
    let settings = "hashtext('stepfast queues ' || current_schema()), hashtext('mails') & 255";
    changing.batch_execute(&format!("SELECT pg_advisory_lock({settings})")).await.unwrap();
    let claim = db.claim(2);
    let waiting = tokio::spawn({
        let db = db.clone();
        async move { db.store.claim(&claim).await }
    });
    let query = "SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                 AND classid::bigint = (hashtext('stepfast queues ' || current_schema())::bigint & 4294967295)";
    let mode = loop {
        if let Some(row) = db.sql.query_opt(query, &[]).await.unwrap() {
            break row.get::<_, String>(0);
        }
    };
    assert_eq!(mode, "ShareLock");
    release(&changing).await;
    assert_eq!(waiting.await.unwrap().unwrap().records.len(), 1);
}

#[tokio::test]
async fn claim_does_not_wait_for_the_claim_of_another_service() {
    let db = long_timeouts().await;
    let foreign = Key::mint(0);
    let of_other = Start { workflow: "foreign".into(), ..start_of(foreign, QUEUED) };
    db.write(vec![start(Key::mint(0), QUEUED), Write::Start(Box::new(of_other))]).await;
    let other = db.other().await;
    let second = other.register(3, &worker_info(&["foreign"])).await.unwrap();
    let mine = db.claim(2);
    let workflows = ["foreign".into()].into();
    let theirs = Claim { worker: second.worker, epoch: second.epoch, workflows, ..mine.clone() };
    let of_first = format!("FOR EACH ROW WHEN (NEW.worker_id = {})", db.worker.worker.0);
    let holder = lock_at_moment(&db, &format!("AFTER INSERT ON assignments {of_first}")).await;
    let claiming = begin_claim(&db, mine).await;
    let claimed = tokio::select! {
        reply = other.claim(&theirs) => reply.unwrap(),
        () = wait_until_turn_is_awaited(&db) => panic!("the claim waits"),
    };
    assert_eq!(claimed.records.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [foreign]);
    release(&holder).await;
    assert_eq!(claiming.await.unwrap().unwrap().records.len(), 1);
}

#[tokio::test]
async fn stalled_claim_does_not_block_other_claims() {
    let db = Fixture::with(|options| options.lock_timeout(Duration::from_millis(50))).await;
    let key = Key::mint(0);
    db.write(vec![start(key, QUEUED)]).await;
    let hanging = client(&db.schema).await;
    hanging.batch_execute("BEGIN").await.unwrap();
    let locked = "SELECT pg_advisory_xact_lock(hashtext('stepfast.' || current_schema()), bucket) \
                  FROM generate_series(0, 63) AS bucket";
    hanging.query(locked, &[]).await.unwrap();
    let taken = db.take(1).await;
    assert_eq!(taken.len(), 1);
    hanging.batch_execute("ROLLBACK").await.unwrap();
}

#[allow(clippy::unnecessary_wraps)] // as Starts and Transitions have it
fn placement() -> Option<Arc<Placement>> {
    Some(Arc::new(Placement { queue: "mails".into(), key: "".into(), priority: 0 }))
}

/// Creates a limited queue with three running executions.
async fn start_three_in_limited_queue(db: &Fixture) -> [Key; 3] {
    let queue = Queue::new("mails").concurrency(3);
    let declaration = QueueChange { queue, is_paused: false, expected_version: 0 };
    db.store.change_queue(&declaration).await.unwrap().unwrap();
    let keys = [(); 3].map(|()| Key::mint(0));
    let put = |key| Write::Start(Box::new(Start { placement: placement(), ..start_of(key, QUEUED) }));
    db.write(keys.map(put).to_vec()).await;
    assert_eq!((db.take(9).await.len(), db.count("slots").await), (3, 3));
    keys
}

/// Pauses the queue while a flush that moves all executions to `state` is between freeing the slots and its commit.
async fn pause_during_transitions(db: &Arc<Fixture>, keys: [Key; 3], state: State) {
    let holder = lock_at_moment(db, "AFTER DELETE ON slots").await;
    let leave =
        move |key| Write::Transition(Transition { key, placement: placement(), state: state.clone() });
    let leaving = tokio::spawn({
        let db = db.clone();
        async move { db.commit(&db.flush(keys.map(leave).to_vec())).await }
    });
    wait_until_blocked(&db.sql, "DELETE FROM slots").await;
    let pause =
        QueueChange { queue: Queue::new("mails").concurrency(3), is_paused: true, expected_version: 1 };
    // all running executions have slots already: the change waits for no flush
    assert!(db.other().await.change_queue(&pause).await.unwrap().is_some());
    assert!(!leaving.is_finished());
    release(&holder).await;
    assert_eq!(leaving.await.unwrap().unwrap(), []);
}

#[tokio::test]
async fn pause_assigns_no_slot_to_finishing_executions() {
    let db = long_timeouts().await;
    let keys = start_three_in_limited_queue(&db).await;
    pause_during_transitions(&db, keys, ended(Status::Completed)).await;
    assert_eq!(db.count("slots").await, 0);
}

#[tokio::test]
async fn pause_assigns_no_slot_to_requeued_executions() {
    let db = long_timeouts().await;
    let keys = start_three_in_limited_queue(&db).await;
    pause_during_transitions(&db, keys, QUEUED).await;
    assert_eq!(db.count("slots").await, 0);
    let resume =
        QueueChange { queue: Queue::new("mails").concurrency(3), is_paused: false, expected_version: 2 };
    db.store.change_queue(&resume).await.unwrap().unwrap();
    assert_eq!((db.take(9).await.len(), db.count("slots").await), (3, 3));
}

/// Creates a queue without limits, with two running executions. Returns their keys in order.
async fn start_two_in_queue(db: &Fixture) -> [Key; 2] {
    let queue = QueueChange { queue: Queue::new("mails"), is_paused: false, expected_version: 0 };
    db.store.change_queue(&queue).await.unwrap().unwrap();
    let mut keys = [(); 2].map(|()| Key::mint(0));
    keys.sort_unstable();
    let put = |key| Write::Start(Box::new(Start { placement: placement(), ..start_of(key, QUEUED) }));
    db.write(keys.map(put).to_vec()).await;
    assert_eq!((db.take(9).await.len(), db.count("slots").await), (2, 0));
    keys
}

/// Begins to set the queue's first limit, and returns once that waits for a transaction that changes an execution.
async fn limit_during_lock(db: &Fixture) -> tokio::task::JoinHandle<Result<Option<QueueRow>, StoreError>> {
    let other = db.other().await;
    let limiting = tokio::spawn(async move {
        let queue = Queue::new("mails").concurrency(1);
        other.change_queue(&QueueChange { queue, is_paused: false, expected_version: 1 }).await
    });
    wait_until_blocked(&db.sql, "SELECT FROM executions WHERE key = $1::uuid FOR SHARE").await;
    limiting
}

/// Returns the executions that have slots.
async fn executions_with_slots(db: &Fixture) -> Vec<uuid::Uuid> {
    let slots = db.sql.query("SELECT execution FROM slots ORDER BY execution", &[]).await.unwrap();
    slots.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn first_limit_assigns_slots_to_running_executions() {
    let db = long_timeouts().await;
    let [runs, ends] = start_two_in_queue(&db).await;
    let holder = lock_at_moment(&db, "AFTER DELETE ON slots").await;
    let leaving = tokio::spawn({
        let db = db.clone();
        let leave = Write::Transition(Transition {
            key: ends,
            placement: placement(),
            state: ended(Status::Completed),
        });
        async move { db.commit(&db.flush(vec![leave])).await }
    });
    wait_until_blocked(&db.sql, "DELETE FROM slots").await;
    let limiting = limit_during_lock(&db).await;
    release(&holder).await;
    assert_eq!(leaving.await.unwrap().unwrap(), []);
    assert!(limiting.await.unwrap().unwrap().is_some());
    assert_eq!(executions_with_slots(&db).await, [uuid(runs)]);
}

/// A flush that changes the second execution before the first one does not wait for the limit.
#[tokio::test]
async fn first_limit_holds_no_execution_lock_while_waiting() {
    let db = long_timeouts().await;
    let keys = start_two_in_queue(&db).await;
    let flush = client(&db.schema).await;
    let lock = "SELECT FROM executions WHERE key = $1 FOR UPDATE NOWAIT";
    flush.batch_execute("BEGIN").await.unwrap();
    flush.query(lock, &[&uuid(keys[1])]).await.unwrap();
    let limiting = limit_during_lock(&db).await;
    flush.query(lock, &[&uuid(keys[0])]).await.unwrap();
    flush.batch_execute("ROLLBACK").await.unwrap();
    assert!(limiting.await.unwrap().unwrap().is_some());
    assert_eq!(executions_with_slots(&db).await, keys.map(uuid));
}

/// A claim queues an execution whose sleep is over, and then waits for the queue, which the limit has locked.
#[tokio::test]
async fn first_limit_does_not_wait_for_blocked_claim() {
    let db = long_timeouts().await;
    let [locked, sleeps] = start_two_in_queue(&db).await;
    let flush = client(&db.schema).await;
    flush.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT FROM executions WHERE key = $1 FOR UPDATE";
    flush.query(lock, &[&uuid(locked)]).await.unwrap();
    let limiting = limit_during_lock(&db).await;
    let sleep = State::Waiting {
        wake_at: Some(Timestamp::from_micros(0)),
        waits: Vec::new(),
        pending_sleeps: Vec::new(),
    };
    db.write(vec![Write::Transition(Transition { key: sleeps, placement: placement(), state: sleep })]).await;
    let claiming = tokio::spawn({
        let (db, claim) = (db.clone(), db.claim(9));
        async move { db.store.claim(&claim).await }
    });
    wait_until_blocked(&db.sql, "SELECT pg_advisory_xact_lock_shared(hashtext('stepfast queues").await;
    flush.batch_execute("ROLLBACK").await.unwrap();
    assert!(limiting.await.unwrap().unwrap().is_some());
    assert!(claiming.await.unwrap().unwrap().records.is_empty());
    assert_eq!(executions_with_slots(&db).await, [uuid(locked)]);
}
