//! Heartbeats, leases, takeovers by time, and closing.

use std::time::Duration;

use stepfast_core::queue::{Queue, QueueChange};
use stepfast_core::store::{Flush, Heartbeat, RequestKind, Status, StoreError};
use stepfast_core::{Key, Store};
use stepfast_postgres::statements::Sql;
use tokio::time::Instant;
use tokio_postgres::SimpleQueryMessage;

use super::support::*;

#[tokio::test]
async fn heartbeat_reports_changes_relevant_to_worker() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..6).map(|_| Key::mint(0)).collect();
    db.write(vec![
        start(keys[0], RUNNING),
        start(keys[1], ended(Status::Failed)),
        start(keys[2], parked()),
        start(keys[3], waiting(Some(later(7)), &[])),
        start(keys[4], RUNNING),
    ])
    .await;
    let reply = db.heartbeat().await;
    assert_eq!((reply.now, reply.is_fenced, reply.has_ready, reply.recovered), (NOON, false, false, 0));
    assert_eq!(
        (reply.next_due, reply.requests.len(), reply.finished.len(), reply.unheld.len()),
        (Some(later(7)), 0, 0, 0)
    );
    db.write(vec![cancel(keys[0]), start(keys[5], QUEUED)]).await;
    let holds = Some(vec![keys[4], Key::mint(0)]);
    let reply = db
        .store
        .heartbeat(&Heartbeat { watched: keys.clone(), held: holds, ..heartbeat_request(&db.worker) })
        .await
        .unwrap();
    assert!(reply.has_ready);
    assert_eq!(reply.requests, [(keys[0], RequestKind::Cancel)]);
    let mut ended = reply.finished;
    ended.sort_unstable();
    assert_eq!(ended, [keys[1], keys[2]]);
    assert_eq!(reply.unheld, [db.load(keys[0]).await.unwrap()]);
}

#[tokio::test]
async fn expired_worker_is_taken_over_after_unchanged_heartbeats() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    let other = db.other().await;
    let observer = other.register(1, &worker_info(&[])).await.unwrap();
    let observe = async || heartbeat_and_take_over(&other, &heartbeat_request(&observer)).await;
    // the lease has expired, but the observer has not yet seen it unchanged
    db.clock.advance(Duration::from_secs(4));
    assert_eq!(observe().await.recovered, 0);
    assert_eq!(observe().await.recovered, 0);
    // a renewal in between restarts the observation
    assert!(!db.heartbeat().await.is_fenced);
    db.clock.advance(Duration::from_secs(4));
    for _ in 0..2 {
        assert_eq!(observe().await.recovered, 0);
        assert_eq!(db.status(key).await, Status::Running);
    }
    assert_eq!(observe().await.recovered, 1);
    let row = db.load(key).await.unwrap().execution;
    assert_eq!((row.status, row.recoveries), (Status::Queued, 1));
    assert!(db.heartbeat().await.is_fenced);
    let fenced_flush = db.commit(&db.flush(vec![checkpoint(key, 1)])).await;
    assert!(matches!(fenced_flush, Err(StoreError::Fenced)), "{fenced_flush:?}");
    assert_eq!(observe().await.recovered, 0);
}

#[tokio::test]
async fn worker_that_renews_after_it_was_found_dead_is_not_taken_over() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    let other = db.other().await;
    let observer = other.register(1, &worker_info(&[])).await.unwrap();
    let observe = async || {
        other.renew(observer.worker, observer.epoch).await.unwrap();
        other.maintain(observer.worker, observer.epoch).await.unwrap().has_dead_workers
    };
    db.clock.advance(Duration::from_secs(4));
    let found = [observe().await, observe().await, observe().await];
    assert_eq!(found, [false, false, true]);
    assert!(!db.renew().await.unwrap().is_fenced);
    assert_eq!(other.take_over(observer.worker).await.unwrap(), 0);
    assert!(!db.heartbeat().await.is_fenced);
    assert_eq!(db.write(vec![transition(key, ended(Status::Completed))]).await, []);
}

#[tokio::test]
async fn worker_is_taken_over_although_server_clock_was_set_back() {
    let lease = Duration::from_millis(100);
    let db = Fixture::with(|options| options.lease(lease)).await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    let other = db.other().await;
    let observer = other.register(1, &worker_info(&[])).await.unwrap();
    let observe = async || heartbeat_and_take_over(&other, &heartbeat_request(&observer)).await.recovered;
    assert_eq!(observe().await, 0);
    // by an hour: the lease now expires in a little more than an hour
    db.clock.set_back(Duration::from_secs(3600));
    // a worker that renews is not taken over
    let begun = Instant::now();
    while begun.elapsed() < lease * 5 {
        db.clock.advance(Duration::from_millis(1));
        assert!(!db.heartbeat().await.is_fenced);
        assert_eq!(observe().await, 0);
    }
    // a worker that does not renew is dead after two leases, by the observer's own clock
    let begun = Instant::now();
    while observe().await == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the worker is not taken over");
    }
    assert!(begun.elapsed() >= lease);
    assert_eq!(db.status(key).await, Status::Queued);
}

#[tokio::test]
async fn valid_lease_is_respected_after_many_heartbeats() {
    let db = Fixture::new().await;
    db.write(vec![start(Key::mint(0), RUNNING)]).await;
    let other = db.other().await;
    let observer = other.register(1, &worker_info(&[])).await.unwrap();
    db.clock.advance(Duration::from_secs(3));
    for _ in 0..5 {
        assert_eq!(heartbeat_and_take_over(&other, &heartbeat_request(&observer)).await.recovered, 0);
    }
    assert!(!db.heartbeat().await.is_fenced);
}

#[tokio::test]
async fn heartbeat_changes_no_row_and_takes_over_no_worker() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    let other = db.other().await;
    let observer = other.register(1, &worker_info(&[])).await.unwrap();
    let versions = async || {
        let query =
            "SELECT array_agg(ctid::text || xmin::text || xmax::text ORDER BY worker_id) FROM workers";
        db.sql.query_one(query, &[]).await.unwrap().get::<_, Vec<String>>(0)
    };
    let before = versions().await;
    // the lease has expired, but only maintenance observes peers
    db.clock.advance(Duration::from_secs(4));
    for _ in 0..5 {
        assert!(!other.heartbeat(&heartbeat_request(&observer)).await.unwrap().is_fenced);
    }
    assert_eq!(versions().await, before);
    let mut recovered = 0;
    for _ in 0..3 {
        assert_eq!(recovered, 0);
        recovered = heartbeat_and_take_over(&other, &heartbeat_request(&observer)).await.recovered;
        other.heartbeat(&heartbeat_request(&observer)).await.unwrap();
    }
    assert_eq!(recovered, 1);
    assert!(db.store.heartbeat(&heartbeat_request(&db.worker)).await.unwrap().is_fenced);
}

#[tokio::test]
async fn workers_survive_server_outage() {
    // by the server's own clock, the lease has long expired, but the server has only just started
    let db = Fixture::with(|mut options| {
        options.clock = None;
        options.lease(Duration::from_secs(100_000))
    })
    .await;
    let observer = db.store.register(1, &worker_info(&[])).await.unwrap();
    db.sql.execute("UPDATE workers SET lease_expires_at = now() - interval '1 day'", &[]).await.unwrap();
    for _ in 0..4 {
        heartbeat_and_take_over(&*db.store, &heartbeat_request(&observer)).await;
    }
    assert!(!db.heartbeat().await.is_fenced);
}

#[tokio::test]
async fn first_worker_after_outage_takes_over_no_peer() {
    let lease = Duration::from_secs(4);
    let db = Fixture::with(|mut options| {
        options.clock = None;
        options.lease(lease)
    })
    .await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    let observer = db.store.register(1, &worker_info(&[])).await.unwrap();
    let observe = async || heartbeat_and_take_over(&*db.store, &heartbeat_request(&observer)).await.recovered;
    assert_eq!((observe().await, db.heartbeat().await.is_fenced), (0, false));
    // no worker reaches the server for longer than a lease: the server was running all the time, or needed that
    // long to reply after its start
    let wait =
        "SELECT pg_sleep(0.2 + extract(epoch FROM max(lease_expires_at) - clock_timestamp())) FROM workers";
    db.sql.execute(wait, &[]).await.unwrap();
    for _ in 0..3 {
        assert_eq!(observe().await, 0, "the peer had no chance to renew yet");
    }
    assert!(!db.heartbeat().await.is_fenced);
    // from now on, the peer is really dead
    let mut recovered = 0;
    while recovered == 0 {
        db.sql.execute("SELECT pg_sleep(0.1)", &[]).await.unwrap();
        recovered = observe().await;
    }
    assert_eq!(recovered, 1);
    assert!(db.heartbeat().await.is_fenced);
}

#[tokio::test]
async fn close_requeues_executions_without_counting_recovery() {
    let db = Fixture::new().await;
    let (a, b) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(a, RUNNING), start(b, ended(Status::Completed))]).await;
    db.store.close(db.worker.worker).await.unwrap();
    let row = db.load(a).await.unwrap().execution;
    assert_eq!((row.status, row.owner, row.recoveries), (Status::Queued, None, 0));
    let fenced_flush: Flush = db.flush(vec![start(Key::mint(0), RUNNING)]);
    assert!(matches!(db.commit(&fenced_flush).await, Err(StoreError::Fenced)));
    assert!(db.heartbeat().await.is_fenced);
    db.store.close(db.worker.worker).await.unwrap();
    let next = db.store.register(3, &worker_info(&[])).await.unwrap();
    assert_ne!(next.worker, db.worker.worker);
}

#[tokio::test]
async fn parent_of_finished_child_is_woken_by_takeover() {
    let db = Fixture::new().await;
    let (parent, of) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, waiting(None, &[of])), child(of, parent, false, RUNNING)]).await;
    // the child finishes, and the worker dies before it wakes the parent
    db.write(vec![transition(of, ended(Status::Completed))]).await;
    let other = db.other().await;
    let observer = other.register(1, &worker_info(&[])).await.unwrap();
    db.clock.advance(Duration::from_secs(4));
    for _ in 0..3 {
        heartbeat_and_take_over(&other, &heartbeat_request(&observer)).await;
    }
    assert_eq!(db.status(parent).await, Status::Queued);
    assert_eq!((db.count("ready").await, db.count("waits").await), (1, 0));
}

/// Dead workers are taken over together. One with many executions, and one with a locked execution, hold up no other.
#[tokio::test]
async fn dead_workers_are_taken_over_together() {
    let db = Fixture::new().await;
    let dead = db.other().await;
    let mut keys = Vec::new();
    for count in [1, 150, 0, 2, 3] {
        let worker = dead.register(3, &worker_info(&["order"])).await.unwrap();
        let of_worker: Vec<Key> = (0..count).map(|_| Key::mint(0)).collect();
        let writes = of_worker.iter().map(|key| start(*key, RUNNING)).collect();
        let flush = Flush { worker: worker.worker, epoch: worker.epoch, number: 1, ..db.flush(writes) };
        dead.commit(&flush).await.unwrap();
        keys.push(of_worker);
    }
    let mut foreign = client(&db.schema).await;
    let lock = foreign.transaction().await.unwrap();
    let locked = keys[3][0];
    let sql = format!("SELECT 1 FROM executions WHERE key = '{locked}' FOR UPDATE");
    lock.batch_execute(&sql).await.unwrap();
    let other = db.other().await;
    let observer = other.register(1, &worker_info(&[])).await.unwrap();
    let take_over = async || {
        db.clock.advance(Duration::from_secs(4));
        for _ in 0..3 {
            heartbeat_and_take_over(&other, &heartbeat_request(&observer)).await;
        }
    };
    take_over().await;
    let queued: Vec<Key> = keys.into_iter().flatten().filter(|key| *key != locked).collect();
    for key in &queued {
        assert_eq!(db.status(*key).await, Status::Queued);
    }
    assert_eq!(db.status(locked).await, Status::Running);
    lock.rollback().await.unwrap();
    take_over().await;
    assert_eq!(db.status(locked).await, Status::Queued);
    assert_eq!((db.count("ready").await as usize, db.count("assignments").await), (queued.len() + 1, 0));
}

/// Eight live workers observe leases. Leases that end too late, because the server's clock was set back, show no live worker.
#[tokio::test]
async fn late_ends_of_leases_disable_no_observer() {
    let db = Fixture::new().await;
    for _ in 0..8 {
        db.store.register(1, &worker_info(&[])).await.unwrap();
    }
    let observer = db.store.register(1, &worker_info(&[])).await.unwrap();
    db.sql.batch_execute(&format!("PREPARE renew AS {}", Sql::Renew.text())).await.unwrap();
    for (lease, is_observing) in [("2 s", "f"), ("1 h", "t")] {
        let others = format!(
            "UPDATE workers SET lease_expires_at = clock_timestamp() + interval '{lease}', lease_ms = 3000 \
             WHERE worker_id <> {}",
            observer.worker.0
        );
        db.sql.batch_execute(&others).await.unwrap();
        let renew = format!("EXECUTE renew ({}, {}, NULL, 3000000)", observer.worker.0, observer.epoch);
        let rows = db.sql.simple_query(&renew).await.unwrap();
        let row = rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        assert_eq!(row.unwrap().get(4), Some(is_observing), "leases of {lease}");
    }
}

#[tokio::test]
async fn readers_work_from_any_runtime() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    db.write(vec![start(key, QUEUED)]).await;
    for _ in 0..2 {
        let store = db.store.clone();
        let registration = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                assert!(
                    store
                        .list(&stepfast_core::store::Filter { limit: 5, ..Default::default() })
                        .await
                        .is_ok()
                );
                store.register(1, &worker_info(&[])).await.unwrap()
            })
        });
        let registration = registration.await.unwrap();
        assert!(!db.store.heartbeat(&heartbeat_request(&registration)).await.unwrap().is_fenced);
        assert!(db.load(key).await.is_some());
    }
}

#[tokio::test]
async fn peers_receive_hint_of_requeue_before_close_returns() {
    let db = Fixture::new().await;
    let other = db.other().await;
    // the store listens from here on
    let listener = other.register(1, &worker_info(&["order"])).await.unwrap().worker;
    other.next_hint(listener).await;
    db.write(vec![start(Key::mint(0), RUNNING)]).await;
    let Fixture { store, worker, .. } = db;
    store.close(worker.worker).await.unwrap();
    // as when its process ends
    drop(store);
    let hint = tokio::time::timeout(Duration::from_mins(1), other.next_hint(listener)).await;
    assert!(hint.is_ok(), "no hint was received");
}

#[tokio::test]
async fn orphaned_slots_are_deleted() {
    let db = Fixture::new().await;
    let queue = Queue::new("a").concurrency(3);
    db.store.change_queue(&QueueChange { queue, is_paused: false, expected_version: 0 }).await.unwrap();
    let insert_rows = "INSERT INTO inbox (key, workflow, queue, input) VALUES (gen_random_uuid(), 'order', 'a', '\\x00'); \
               UPDATE inbox SET key = overlay(key::text PLACING '8000' FROM 33)::uuid";
    for _ in 0..3 {
        db.sql.batch_execute(insert_rows).await.unwrap();
    }
    assert_eq!(db.take(1).await.len(), 1);
    // one slot of a finished execution, one of a deleted execution
    let [over, gone] = [(); 2].map(|()| Key::mint(0));
    db.write(vec![start(over, ended(Status::Completed))]).await;
    for key in [over, gone] {
        let leak = "INSERT INTO slots (worker_id, execution, queue, queue_key) VALUES (7, $1, 'a', '')";
        db.sql.execute(leak, &[&uuid(key)]).await.unwrap();
    }
    assert_eq!(db.take(9).await, []);
    // a slot that is assigned concurrently is kept
    let foreign = client(&db.schema).await;
    foreign.batch_execute("BEGIN").await.unwrap();
    foreign.execute("UPDATE executions SET status = 2 WHERE key = $1", &[&uuid(over)]).await.unwrap();
    for _ in 0..60 {
        db.heartbeat().await;
    }
    assert_eq!(db.count("slots").await, 2);
    foreign.batch_execute("ROLLBACK").await.unwrap();
    // a sweep is due once a minute for all workers of the schema
    db.clock.advance(Duration::from_mins(1));
    for _ in 0..60 {
        db.heartbeat().await;
    }
    assert_eq!(db.count("slots").await, 1);
    assert_eq!(db.take(9).await.len(), 2);
    for _ in 0..60 {
        db.heartbeat().await;
    }
    assert_eq!(db.count("slots").await, 3);
}
