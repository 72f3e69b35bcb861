//! Errors of the server in a flush: which are attributed to an item, and which to the server.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::store::{Flush, Status, StoreError, Write};
use stepfast_core::{Context, Key, Workflow};
use stepfast_tests::engine::run_within;
use stepfast_tests::engine::support::{BodyResult, noop, open_engine_on, shut_down};

use super::support::*;

/// Creates a trigger that raises an error with this code for every execution of one workflow.
async fn create_error_trigger(db: &Fixture, code: &str, workflow: &str) {
    db.sql
        .batch_execute(&format!(
            "CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '{code}'; END $$; \
             CREATE TRIGGER raise BEFORE INSERT ON executions FOR EACH ROW \
             WHEN (NEW.workflow = '{workflow}') EXECUTE FUNCTION raise()"
        ))
        .await
        .unwrap();
}

/// Drops the trigger of [`create_error_trigger`].
async fn drop_error_trigger(db: &Fixture) {
    db.sql.batch_execute("DROP FUNCTION raise CASCADE").await.unwrap();
}

/// Returns a Start of the workflow for which the tests create the trigger.
fn unusual_start(key: Key) -> Write {
    Write::Start(Box::new(stepfast_core::store::Start { workflow: "odd".into(), ..start_of(key, RUNNING) }))
}

#[tokio::test]
async fn unlisted_error_is_attributed_to_its_item() {
    let db = Fixture::new().await;
    // errors that features, the server, foreign functions, broken triggers and other code can raise
    for code in ["0A000", "XX000", "38000", "42883", "42P01", "26000", "ZZ999"] {
        create_error_trigger(&db, code, "odd").await;
        let (rejected, valid) = (Key::mint(0), Key::mint(0));
        let flush = db.flush(vec![unusual_start(rejected), start(valid, RUNNING)]);
        for is_bisecting in [false, true] {
            let error = db.commit(&Flush { is_bisecting, ..flush.clone() }).await.unwrap_err();
            let StoreError::Rejected(reason) = &error else { panic!("{code}: {error}") };
            assert!(reason.contains("not this one") && reason.contains(code), "{reason}");
        }
        assert_eq!(db.load(valid).await, None, "{code}");
        // the same number without the rejected item; then that item alone
        assert_eq!(db.write(vec![start(valid, RUNNING)]).await, [], "{code}");
        let error = db.commit(&db.flush(vec![unusual_start(rejected)])).await.unwrap_err();
        assert!(matches!(error, StoreError::Rejected(_)), "{code}: {error}");
        drop_error_trigger(&db).await;
        assert_eq!(db.write(vec![unusual_start(rejected)]).await, [], "{code}");
    }
}

#[tokio::test]
async fn server_error_is_attributed_to_no_item() {
    let db = Fixture::new().await;
    // no memory, no disk space, a read-only server, a system error, a missing privilege
    for code in ["53200", "53100", "25006", "58030", "08000", "42501"] {
        create_error_trigger(&db, code, "odd").await;
        let flush = db.flush(vec![unusual_start(Key::mint(0)), start(Key::mint(0), RUNNING)]);
        for _ in 0..3 {
            let error = db.commit(&flush).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable(_)), "{code}: {error}");
        }
        drop_error_trigger(&db).await;
        assert_eq!(db.commit(&Flush { is_resent: true, ..flush }).await.unwrap(), [], "{code}");
    }
}

#[tokio::test]
async fn cancelled_statement_is_retried_separately() {
    let db = Fixture::new().await;
    create_error_trigger(&db, "57014", "odd").await;
    let (rejected, valid) = (Key::mint(0), Key::mint(0));
    let error = db.commit(&db.flush(vec![unusual_start(rejected), start(valid, RUNNING)])).await.unwrap_err();
    assert!(matches!(error, StoreError::Blocked(_)), "{error}");
    assert_eq!(db.write(vec![start(valid, RUNNING)]).await, []);
    // the error does not concern its data: it is retried until it succeeds
    let error = db.commit(&db.flush(vec![unusual_start(rejected)])).await.unwrap_err();
    assert!(matches!(error, StoreError::Blocked(_)), "{error}");
    drop_error_trigger(&db).await;
    assert_eq!(db.write(vec![unusual_start(rejected)]).await, []);
}

#[tokio::test]
async fn locks_on_tables_and_on_rows_are_distinguished() {
    let db = Fixture::new().await;
    let mut foreign = client(&db.schema).await;
    let try_alone = async || {
        let id = Some("wanted".into());
        let start = stepfast_core::store::Start { workflow_id: id, ..start_of(Key::mint(0), RUNNING) };
        let flush = db.flush(vec![Write::Start(Box::new(start))]);
        db.commit(&Flush { is_bisecting: true, ..flush }).await.unwrap_err()
    };
    let lock = foreign.transaction().await.unwrap();
    let take = "INSERT INTO executions (key, workflow, status, created_at, input, workflow_id) \
                VALUES (gen_random_uuid(), 'order', 4, now(), '', 'wanted')";
    lock.execute(take, &[]).await.unwrap();
    assert!(matches!(try_alone().await, StoreError::Blocked(_)));
    lock.rollback().await.unwrap();
    let lock = foreign.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE executions IN SHARE MODE").await.unwrap();
    assert!(matches!(try_alone().await, StoreError::TableLocked(_)));
    lock.rollback().await.unwrap();
}

#[tokio::test]
async fn mismatched_schema_is_attributed_to_no_item() {
    let db = Fixture::new().await;
    let (before, key) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(before, RUNNING)]).await;
    db.sql.batch_execute("ALTER TABLE executions RENAME COLUMN input TO inputs").await.unwrap();
    let flush = db.flush(vec![start(key, RUNNING)]);
    for is_resent in [false, true, true] {
        let error = db.commit(&Flush { is_resent, ..flush.clone() }).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    }
    db.sql.batch_execute("ALTER TABLE executions RENAME COLUMN inputs TO input").await.unwrap();
    assert_eq!(db.commit(&Flush { is_resent: true, ..flush }).await.unwrap(), []);
    assert_eq!(db.status(key).await, Status::Running);
}

#[tokio::test]
async fn session_without_its_statements_is_replaced() {
    let db = Fixture::new().await;
    // as if a pooler had switched to another session of the server
    db.sql
        .batch_execute(
            "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN NULL; END $$; \
             CREATE TRIGGER forget AFTER INSERT ON executions EXECUTE FUNCTION forget()",
        )
        .await
        .unwrap();
    let (first, second) = (Key::mint(0), Key::mint(0));
    let result = db.commit(&db.flush(vec![start(first, RUNNING)])).await;
    assert!(result.is_ok(), "{result:?}");
    db.sql.batch_execute("DROP FUNCTION forget CASCADE").await.unwrap();
    // no item caused the error; the next attempt uses a session of its own
    let flush = db.flush(vec![start(second, RUNNING), checkpoint(first, 1)]);
    let error = db.commit(&flush).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert_eq!(db.commit(&Flush { is_resent: true, ..flush }).await.unwrap(), []);
    assert_eq!(db.status(second).await, Status::Running);
}

#[test]
fn separately_retried_items_do_not_block_each_other() {
    let result = run_within(Duration::from_secs(60), |runtime| {
        runtime.block_on(async {
            let db = Fixture::with(|options| options).await;
            create_error_trigger(&db, "57014", "odd").await;
            let (noop, odd) = (noop(), odd_workflow());
            let store: Arc<dyn stepfast_core::Store> = db.store.clone();
            let (engine, _) = open_engine_on(store, |b| b.register(&noop).register(&odd)).await;
            // each lane has an item that is cancelled whenever it is tried
            let stuck: Vec<_> = (0..8)
                .map(|x| {
                    let (engine, odd) = (engine.clone(), odd.clone());
                    tokio::spawn(async move { engine.run(&odd, x).await })
                })
                .collect();
            // other items need ids that a foreign transaction has inserted and then rolls back
            let mut other_session = client(&db.schema).await;
            let lock = other_session.transaction().await.unwrap();
            for x in 0..8 {
                let take = "INSERT INTO executions (key, workflow, status, created_at, input, workflow_id) \
                            VALUES (gen_random_uuid(), 'order', 4, now(), '', $1)";
                lock.execute(take, &[&format!("id {x}")]).await.unwrap();
            }
            let blocked: Vec<_> = (0..8)
                .map(|x| {
                    let (engine, noop) = (engine.clone(), noop.clone());
                    tokio::spawn(async move { engine.run(&noop, x).workflow_id(format!("id {x}")).await })
                })
                .collect();
            wait_until_blocked(&db.sql, "INSERT INTO executions").await;
            // the lanes continue: the blocked items are retried separately
            for x in 0..100 {
                assert_eq!(engine.run(&noop, x).await.unwrap(), x);
            }
            lock.rollback().await.unwrap();
            for (x, blocked) in (0..).zip(blocked) {
                assert_eq!(blocked.await.unwrap().unwrap(), x);
            }
            drop_error_trigger(&db).await;
            for (x, stuck) in (0..).zip(stuck) {
                assert_eq!(stuck.await.unwrap().unwrap(), x);
            }
            shut_down(engine).await;
        });
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn odd_workflow() -> Workflow<i32, i32> {
    Workflow::new("odd", |_: Context, x: i32| async move { BodyResult::Ok(x) })
}

#[test]
fn neighbours_of_rejected_item_continue() {
    let result = run_within(Duration::from_secs(60), |runtime| {
        runtime.block_on(async {
            let db = Fixture::with(|options| options).await;
            create_error_trigger(&db, "0A000", "odd").await;
            let (noop, odd) = (noop(), odd_workflow());
            let store: Arc<dyn stepfast_core::Store> = db.store.clone();
            let (engine, _) = open_engine_on(store, |b| b.register(&noop).register(&odd)).await;
            let odds: Vec<_> = (0..3)
                .map(|x| {
                    let (engine, odd) = (engine.clone(), odd.clone());
                    tokio::spawn(async move { engine.run(&odd, x).await })
                })
                .collect();
            for x in 0..100 {
                assert_eq!(engine.run(&noop, x).await.unwrap(), x);
            }
            for odd in odds {
                let error = odd.await.unwrap().unwrap_err();
                assert!(error.to_string().contains("not this one"), "{error}");
            }
            shut_down(engine).await;
        });
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
