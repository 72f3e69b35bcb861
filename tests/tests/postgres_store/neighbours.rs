//! Other services in the same schema: their rows cost a worker nothing.

use serde_json::Value;
use stepfast_core::queue::{Queue, QueueChange};
use stepfast_core::store::{Claim, Heartbeat};
use stepfast_core::{Key, Store};
use stepfast_postgres::statements::Sql;
use stepfast_tests::fixtures::builders;

use super::support::*;

/// Number of rows of another service in each table.
const FOREIGN_ROWS: u32 = 20_000;

/// Inserts executions of another service: ready in the same queue, due, not yet due, in quarantine, and with requests. Also
/// inserts due executions of an old version of the worker's own workflow.
async fn add_foreign_rows(db: &Fixture) {
    db.sql
        .batch_execute(&format!(
            "INSERT INTO executions (created_at, status, key, owner, workflow, input) \
             SELECT now(), i % 4, gen_random_uuid(), CASE WHEN i % 4 = 2 THEN 1000000 END, 'foreign', 'x' \
             FROM generate_series(1, {FOREIGN_ROWS}) i; \
             INSERT INTO ready (execution, route) SELECT key, E'foreign\\x01\\x01default' FROM executions; \
             INSERT INTO timers (due_at, execution, route) SELECT '2000-01-01', key, E'foreign\\x01\\x01default' FROM executions; \
             INSERT INTO quarantine (due_at, execution, workflow) SELECT '2000-01-01', key, 'foreign' FROM executions; \
             INSERT INTO requests (requested_at, kind, execution, n, worker_id) \
             SELECT now(), 1, key, key, 1000000 FROM executions WHERE status = 2; \
             INSERT INTO executions (created_at, status, key, app_version, workflow, input) \
             SELECT now(), 3, gen_random_uuid(), '1', 'order', 'x' FROM generate_series(1, {FOREIGN_ROWS}) i; \
             INSERT INTO timers (due_at, execution, route) \
             SELECT '2000-01-01', key, E'order\\x011\\x01default' FROM executions WHERE app_version = '1'; \
             ANALYZE executions; ANALYZE ready; ANALYZE timers; ANALYZE quarantine; ANALYZE requests"
        ))
        .await
        .unwrap();
}

/// Returns the number of rows that the scans of a plan have read.
fn rows_read(plan: &Value) -> f64 {
    let number = |name: &str| plan[name].as_f64().unwrap_or(0.0);
    let mut rows = 0.0;
    if plan["Node Type"].as_str().is_some_and(|node| node.contains("Scan") && !node.contains("CTE")) {
        let read = number("Actual Rows")
            + number("Rows Removed by Filter")
            + number("Rows Removed by Index Recheck");
        rows = read * number("Actual Loops");
    }
    rows + plan["Plans"].as_array().into_iter().flatten().map(rows_read).sum::<f64>()
}

/// Asserts that a statement reads few rows and few pages, and writes nothing to the log. A scan of an index also reads the
/// entries that it does not return, so rows alone do not show its cost.
async fn assert_quiet(db: &Fixture, sql: Sql, arguments: &str) {
    db.sql.batch_execute(&format!("PREPARE quiet AS {}", sql.text())).await.unwrap();
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) EXECUTE quiet ({arguments})");
    let plan: Value = match &db.sql.simple_query(&explain).await.unwrap()[..] {
        [_, tokio_postgres::SimpleQueryMessage::Row(row), ..]
        | [tokio_postgres::SimpleQueryMessage::Row(row), ..] => {
            serde_json::from_str(row.get(0).unwrap()).unwrap()
        }
        other => panic!("{other:?}"),
    };
    let plan = &plan[0]["Plan"];
    let number = |name: &str| plan[name].as_f64().unwrap();
    let (rows, log) = (rows_read(plan), number("WAL Bytes"));
    let pages = number("Shared Hit Blocks") + number("Shared Read Blocks");
    assert!(
        rows < 50.0 && pages < 80.0 && log == 0.0,
        "{sql:?} read {rows} rows in {pages} pages, and wrote {log} bytes: {plan:#}"
    );
    db.sql.batch_execute("DEALLOCATE quiet").await.unwrap();
}

#[tokio::test]
async fn rows_of_other_services_are_neither_read_nor_locked() {
    let db = Fixture::new().await;
    add_foreign_rows(&db).await;
    db.sql.batch_execute(&db.store.lane_settings()).await.unwrap();
    let (worker, epoch) = (db.worker.worker.0, db.worker.epoch);
    let look = format!("{worker}, {epoch}, NULL, '{{}}', '{{order}}', '2', NULL");
    for (sql, arguments) in [
        (Sql::Look, look.as_str()),
        (Sql::LockReadyQueues, "NULL, NULL, '{order}', '2', '{}', true"),
        (Sql::CheckDue, "'{order}', NULL, '2', NULL"),
        (Sql::QuarantineCandidates, "'{order}', NULL, '2', NULL"),
    ] {
        assert_quiet(&db, sql, arguments).await;
    }
}

/// Returns the number of routes that lock_ready_queues.sql finds.
async fn found_routes(db: &Fixture, arguments: &str) -> usize {
    db.sql.batch_execute(&format!("PREPARE found AS {}", Sql::LockReadyQueues.text())).await.unwrap();
    let rows = db.sql.simple_query(&format!("EXECUTE found ({arguments})")).await.unwrap();
    db.sql.batch_execute("DEALLOCATE found").await.unwrap();
    let workflows = rows.iter().filter_map(|row| match row {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(13),
        _ => None,
    });
    workflows.map(|workflows| workflows.split(',').count()).sum()
}

/// Routes are found without a step over the rows of a route, whether or not the last claim took from it.
#[tokio::test]
async fn backlog_of_a_route_costs_a_search_nothing() {
    let db = Fixture::new().await;
    db.sql
        .batch_execute(&format!(
            "INSERT INTO ready (execution, route) \
             SELECT gen_random_uuid(), concat_ws(E'\\x01', 'order', v, q) \
             FROM generate_series(1, {FOREIGN_ROWS}) i, unnest(ARRAY['', '2', '3']) v, unnest(ARRAY['a', 'b']) q; \
             ANALYZE ready"
        ))
        .await
        .unwrap();
    db.sql.batch_execute(&db.store.lane_settings()).await.unwrap();
    for known in [r"'{}'", r"ARRAY[E'order\x01\x01a']", r"ARRAY[E'order\x012\x01b', E'order\x01\x01b']"] {
        let arguments = format!("NULL, NULL, '{{order}}', NULL, {known}, true");
        assert_eq!(found_routes(&db, &arguments).await, 6, "known routes: {known}");
        assert_quiet(&db, Sql::LockReadyQueues, &arguments).await;
    }
    let look = format!("{}, {}, NULL, '{{}}', '{{order}}', NULL, NULL", db.worker.worker.0, db.worker.epoch);
    assert_quiet(&db, Sql::Look, &look).await;
}

/// A claim that may take one execution reads one of many keys.
#[tokio::test]
async fn keys_that_get_no_turn_cost_a_claim_nothing() {
    let db = Fixture::new().await;
    db.sql
        .batch_execute(&format!(
            "INSERT INTO ready (execution, route, queue_key) \
             SELECT gen_random_uuid(), E'order\\x01\\x01q', i::text FROM generate_series(1, {FOREIGN_ROWS}) i; \
             ANALYZE ready"
        ))
        .await
        .unwrap();
    let of = |wanted: u32| {
        format!(
            r"'{{q}}', ARRAY[''], '{{NULL}}', '{{1}}', 2000, '{{false}}', ARRAY[E'order\x01\x01q'], '{{{wanted}}}'"
        )
    };
    db.sql.batch_execute(&db.store.lane_settings()).await.unwrap();
    assert_quiet(&db, Sql::NextKeys, &of(1)).await;
    db.sql.batch_execute(&format!("PREPARE keys AS {}", Sql::NextKeys.text())).await.unwrap();
    let rows = db.sql.simple_query(&format!("EXECUTE keys ({})", of(7))).await.unwrap();
    let is_row =
        |it: &&tokio_postgres::SimpleQueryMessage| matches!(it, tokio_postgres::SimpleQueryMessage::Row(_));
    assert_eq!(rows.iter().filter(is_row).count(), 7);
}

#[tokio::test]
async fn own_executions_are_found_beside_those_of_other_services() {
    let db = Fixture::new().await;
    add_foreign_rows(&db).await;
    let heartbeat = Heartbeat { app_version: Some("2".into()), ..heartbeat_request(&db.worker) };
    let reply = db.store.heartbeat(&heartbeat).await.unwrap();
    assert_eq!((reply.has_ready, reply.next_due, reply.requests), (false, None, vec![]));
    let [ready, due] = [(); 2].map(|()| Key::mint(0));
    db.write(vec![start(ready, QUEUED), start(due, waiting(Some(later(0)), &[]))]).await;
    let reply = db.store.heartbeat(&heartbeat).await.unwrap();
    assert_eq!((reply.has_ready, reply.next_due), (true, Some(later(0))));
    let claim = Claim { app_version: Some("2".into()), ..db.claim(10) };
    let claimed = db.store.claim(&claim).await.unwrap().records;
    assert_eq!(claimed.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [due, ready]);
}

/// A row lock of several flushes at once would be a multixact, of which the whole server has a limited number.
#[tokio::test]
async fn flushes_lock_no_row_of_their_queue() {
    let db = Fixture::new().await;
    for queue in [Queue::new("limited").concurrency(5), Queue::new("open")] {
        db.store.change_queue(&QueueChange { queue, is_paused: false, expected_version: 0 }).await.unwrap();
    }
    for queue in ["limited", "open"] {
        db.write((0..3).map(|_| builders::enqueue(Key::mint(0), queue, "", 0)).collect()).await;
        db.write((0..3).map(|_| builders::self_claiming(Key::mint(0), queue, "")).collect()).await;
    }
    let locked = "SELECT count(*), count(*) FILTER (WHERE xmax <> '0') FROM queues";
    let row = db.sql.query_one(locked, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 0), "a transaction has locked a row");
}

#[tokio::test]
async fn claim_locks_no_execution_that_it_leaves() {
    let db = Fixture::new().await;
    db.write((0..40).map(|_| start(Key::mint(0), waiting(Some(later(0)), &[]))).collect()).await;
    assert_eq!(db.store.claim(&db.claim(3)).await.unwrap().records.len(), 3);
    let left = "SELECT count(*), count(*) FILTER (WHERE xmax <> '0') FROM executions WHERE status = 3";
    let row = db.sql.query_one(left, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (37, 0));
}
