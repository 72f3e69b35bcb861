//! Opening and migrating a schema, and rejected schemas.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use stepfast_core::queue::{DEFAULT_QUEUE, Queue};
use stepfast_core::store::{Claim, Detail, Durability, ExecutionId, Filter, Status, StoreError};
use stepfast_core::{Context, Error, Key, Store, Workflow};
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_tests::engine::support::{BodyResult, open_engine_on, shut_down};
use stepfast_tests::fixtures::postgres_server::PostgresServer;

use tokio::sync::Notify;
use uuid::Uuid;

use super::proxy::Proxy;
use super::support::*;

#[tokio::test]
async fn processes_migrate_concurrently() {
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = || PostgresOptions::default().schema(&schema);
    let stores = join_all((0..4).map(|_| PostgresStore::open_with(url(), options()))).await;
    for store in stores {
        store.unwrap().register(1, &worker_info(&[])).await.unwrap();
    }
    let sql = client(&schema).await;
    let versions: i64 = sql.query_one("SELECT count(*) FROM schema_version", &[]).await.unwrap().get(0);
    assert_eq!(versions, 11);
}

/// Creates a role without privileges. Returns its name, and the URL for it.
async fn role(schema: &str) -> (String, String) {
    let name = format!("app_{schema}");
    client("public").await.batch_execute(&format!("CREATE ROLE {name} LOGIN")).await.unwrap();
    let url = url().replace("stepfast@", &format!("{name}@"));
    (name, url)
}

fn reason(error: &StoreError) -> &str {
    let StoreError::Open { reason, .. } = error else { panic!("{error}") };
    reason
}

#[tokio::test]
async fn role_with_row_privileges_runs_engines() {
    let db = Fixture::new().await;
    let (role, theirs) = role(&db.schema).await;
    let options = || PostgresOptions::default().schema(&db.schema);
    let error = PostgresStore::open_with(&theirs, options()).await.unwrap_err();
    let wanted = format!("stepfast db migrate --role {role}");
    assert!(reason(&error).contains(&wanted) && reason(&error).contains("\"stepfast\""), "{error}");
    PostgresStore::migrate(url(), options(), Some(&role), false).await.unwrap();
    let store = Arc::new(PostgresStore::open_with(&theirs, options()).await.unwrap());
    // all operations of an engine
    let (order, child) = parent_and_child_workflows();
    let (engine, _) = open_engine_on(store, |builder| builder.register(&order).register(&child)).await;
    assert_eq!(engine.run(&order, 3).workflow_id("theirs").await.unwrap(), 7);
    assert_eq!(engine.list(&Filter::default()).await.unwrap().executions.len(), 2);
    engine.cancel("theirs").await.unwrap();
    shut_down(engine).await;
    // all privileges that it may need: no table is missing
    let lacking: i64 = db
        .sql
        .query_one(
            "SELECT count(*) FROM pg_class c CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS u (r) \
             WHERE c.relnamespace = $1::text::regnamespace AND c.relkind = 'r' \
               AND c.relname <> 'schema_version' AND NOT has_table_privilege($2::text, c.oid, u.r)",
            &[&db.schema, &role],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(lacking, 0, "rights on tables");
    // the check covers all tables, too
    db.sql.batch_execute(&format!("REVOKE SELECT ON quarantine FROM {role}")).await.unwrap();
    let findings = PostgresStore::check(&theirs, options()).await.unwrap();
    let finding = findings.iter().find(|finding| !finding.is_ok).unwrap();
    assert!(finding.state.contains("SELECT on quarantine"), "{}", finding.state);
    let error = PostgresStore::open_with(&theirs, options()).await.unwrap_err();
    assert!(reason(&error).contains("SELECT on quarantine") && reason(&error).contains(&wanted), "{error}");
    // a read-only tool needs fewer privileges
    PostgresStore::open_with(&theirs, options().must_exist(true)).await.unwrap();
    PostgresStore::migrate(url(), options(), Some(&role), false).await.unwrap();
    // for this role, the schema seems to be of an older version
    db.sql.batch_execute("DELETE FROM schema_version").await.unwrap();
    let error = PostgresStore::open_with(&theirs, options()).await.unwrap_err();
    assert!(reason(&error).contains(&wanted) && reason(&error).contains("\"stepfast\""), "{error}");
}

#[tokio::test]
async fn role_without_create_privilege_gets_advice() {
    let schema = PostgresServer::shared().fresh_schema_name();
    let (role, theirs) = role(&schema).await;
    let options = PostgresOptions::default().schema(&schema);
    let error = PostgresStore::open_with(&theirs, options).await.unwrap_err();
    let reason = reason(&error);
    assert!(reason.contains("may create a schema in database \"postgres\""), "{reason}");
    assert!(reason.contains(&format!("stepfast db migrate --role {role}")), "{reason}");
}

/// Returns a workflow with a step and a child, and the child's workflow.
fn parent_and_child_workflows() -> (Workflow<u32, u32>, Workflow<u32, u32>) {
    let child = Workflow::new("child", |_: Context, n: u32| async move { BodyResult::Ok(n + 1) });
    let known = child.clone();
    let order = Workflow::new("order", move |mut cx: Context, n: u32| {
        let child = known.clone();
        async move {
            let double = cx.step("double", async || BodyResult::Ok(n * 2)).await?;
            cx.child(&child, double).await
        }
    });
    (order, child)
}

#[tokio::test]
async fn indexed_texts_are_compared_by_bytes() {
    let db = Fixture::new().await;
    let query = "SELECT i.relname || '.' || a.attname FROM pg_attribute AS a JOIN pg_class AS i ON i.oid = a.attrelid \
                 WHERE i.relkind = 'i' AND i.relnamespace = $1::text::regnamespace \
                   AND a.attcollation NOT IN (0, '\"C\"'::regcollation)";
    let others: Vec<String> =
        db.sql.query(query, &[&db.schema]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[tokio::test]
async fn schema_of_another_build_is_rejected() {
    let db = Fixture::new().await;
    db.sql.batch_execute("UPDATE schema_version SET checksum = '7'").await.unwrap();
    let options = || PostgresOptions::default().schema(&db.schema);
    let error = PostgresStore::open_with(url(), options()).await.unwrap_err();
    assert!(
        reason(&error).contains("another build of version 11") && reason(&error).contains("?schema="),
        "{error}"
    );
    let findings = PostgresStore::check(url(), options()).await.unwrap();
    let finding = findings.iter().find(|finding| finding.subject == "schema").unwrap();
    assert!(finding.state.contains("another build"), "{finding:?}");
}

#[tokio::test]
async fn newer_schema_is_rejected() {
    let db = Fixture::new().await;
    let insert =
        "INSERT INTO schema_version SELECT 99, 'future', applied_on, checksum FROM schema_version LIMIT 1";
    db.sql.execute(insert, &[]).await.unwrap();
    let options = PostgresOptions::default().schema(&db.schema);
    let error = PostgresStore::open_with(url(), options).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 99, supported: 11 }), "{error}");
}

#[tokio::test]
async fn schema_that_must_exist_is_not_created() {
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = || PostgresOptions::default().schema(&schema).must_exist(true);
    let error = PostgresStore::open_with(url(), options()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Open { reason, .. } if reason.contains(&schema)), "{error}");
    let sql = client("public").await;
    let exists = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)";
    assert!(!sql.query_one(exists, &[&schema]).await.unwrap().get::<_, bool>(0));
    PostgresStore::open_with(url(), options().must_exist(false)).await.unwrap();
    PostgresStore::open_with(url(), options()).await.unwrap();
}

#[tokio::test]
async fn outdated_server_is_rejected_before_schema_is_created() {
    let proxy = Proxy::start().await;
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = || PostgresOptions::default().schema(&schema);
    let sql = client("public").await;
    let is_there = async || {
        let query = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
        sql.query_one(query, &[&schema]).await.unwrap().get::<_, i64>(0) > 0
    };
    for (text, number) in [("12.22 (Debian 12.22-1)", 120_022), ("9.6.24", 90_624)] {
        *proxy.faults.version.lock().unwrap() = Some((text, number));
        let error = PostgresStore::open_with(&proxy.url, options()).await.unwrap_err();
        let StoreError::Open { store, reason } = &error else { panic!("{error}") };
        assert_eq!(*reason, format!("the server is Postgres {text}; 13 or newer is required"));
        assert!(proxy.url.contains(store.split('@').nth(1).unwrap()), "{store}");
        assert!(!is_there().await);
    }
    *proxy.faults.version.lock().unwrap() = Some(("13.0", 130_000));
    let store = PostgresStore::open_with(&proxy.url, options()).await.unwrap();
    assert_eq!(store.info().version, "PostgreSQL 13.0");
    assert!(is_there().await);
}

#[tokio::test]
async fn unreachable_server_is_named() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://me:secret@127.0.0.1:{port}/shop");
    let error = PostgresStore::open(&url).await.unwrap_err();
    let StoreError::Unreachable { store, reason } = &error else { panic!("{error}") };
    assert_eq!(*store, format!("postgres://me@127.0.0.1:{port}/shop"));
    assert!(reason.contains("refused"), "{reason}");
    assert!(!error.to_string().contains("secret"));
}

#[tokio::test]
async fn invalid_role_url_and_options_are_explained() {
    let stranger = url().replace("stepfast@", "stranger@");
    let error = PostgresStore::open(&stranger).await.unwrap_err();
    assert!(matches!(&error, StoreError::Open { reason, .. } if reason.contains("stranger")), "{error}");
    let error = PostgresStore::open("postgres://host:port/x").await.unwrap_err();
    assert!(matches!(&error, StoreError::Open { reason, .. } if reason.contains("URL")), "{error}");
    let options = PostgresOptions::default().durability(Durability::None);
    let error = PostgresStore::open_with(url(), options).await.unwrap_err();
    assert!(matches!(&error, StoreError::Open { reason, .. } if reason.contains("relaxed")), "{error}");
}

#[tokio::test]
async fn schema_documents_every_table_and_column() {
    let db = Fixture::new().await;
    let bare: Vec<String> = db
        .sql
        .query(
            "SELECT c.relname || coalesce('.' || a.attname, '') FROM pg_class c \
             LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             WHERE c.relnamespace = $1::text::regnamespace AND c.relkind = 'r' \
               AND (col_description(c.oid, a.attnum) IS NULL OR obj_description(c.oid) IS NULL)",
            &[&db.schema],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(bare, [""; 0]);
}

#[tokio::test]
async fn columns_of_values_are_compressed_with_lz4_if_the_server_has_it() {
    let db = Fixture::new().await;
    // servers before 14 have no column attcompression
    let query = "SELECT c.relname || '.' || a.attname, coalesce(to_jsonb(a) ->> 'attcompression', ''), \
                        EXISTS (SELECT FROM pg_settings \
                                WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) \
                 FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid \
                 WHERE c.relnamespace = $1::text::regnamespace AND c.relkind = 'r' AND NOT a.attisdropped \
                   AND a.atttypid = 'bytea'::regtype AND a.attname NOT IN ('path', 'armed')";
    let columns = db.sql.query(query, &[&db.schema]).await.unwrap();
    assert_eq!(columns.len(), 10);
    for column in columns {
        let (name, method, has_lz4): (String, String, bool) = (column.get(0), column.get(1), column.get(2));
        assert_eq!(method, if has_lz4 { "l" } else { "" }, "{name}");
    }
}

#[tokio::test]
async fn full_durability_overrides_role_settings() {
    let db = Fixture::new().await;
    assert_eq!(db.store.info().durability, Durability::Full);
    for (settings, expected) in [(db.store.lane_settings(), "on"), (relaxed_lane_settings(&db).await, "off")]
    {
        let sql = client(&db.schema).await;
        sql.batch_execute("SET synchronous_commit TO local").await.unwrap();
        sql.batch_execute(&settings).await.unwrap();
        let row = sql.query_one("SELECT current_setting('synchronous_commit')", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), expected);
    }
}

/// Returns the statement that sets up lanes with relaxed durability.
async fn relaxed_lane_settings(db: &Fixture) -> String {
    let options = PostgresOptions::default().schema(&db.schema).durability(Durability::Relaxed);
    PostgresStore::open_with(url(), options).await.unwrap().lane_settings()
}

#[tokio::test]
async fn ready_executions_of_version_1_continue() {
    let newest = Fixture::new().await;
    let schema = PostgresServer::shared().fresh_schema_name();
    let (ended, begun, fresh) = (Key::mint(0), Key::mint(0), Key::mint(0));
    let sql = client("public").await;
    let initial = include_str!("../../../crates/postgres/migrations/V1__initial.sql");
    sql.batch_execute(&format!(
        "CREATE SCHEMA {schema}; SET search_path = {schema}; {initial};
         CREATE TABLE schema_version (LIKE {newest}.schema_version INCLUDING ALL);
         INSERT INTO schema_version SELECT * FROM {newest}.schema_version WHERE version = 1",
        newest = newest.schema
    ))
    .await
    .unwrap();
    for (key, status) in [(ended, 4_i16), (begun, 1), (fresh, 1)] {
        let insert = "INSERT INTO executions (created_at, shard, status, key, workflow, input) \
                      VALUES (now(), 1, $2, $1, 'order', '\\x0001')";
        sql.execute(insert, &[&uuid(key), &status]).await.unwrap();
    }
    for key in [begun, fresh] {
        let ready = "INSERT INTO ready (execution, workflow) VALUES ($1, 'order')";
        sql.execute(ready, &[&uuid(key)]).await.unwrap();
    }
    let checkpoint =
        "INSERT INTO checkpoints VALUES (now(), 1, 1, null, 1, 1, $1, '\\x01', 'charge', '\\x0001')";
    sql.execute(checkpoint, &[&uuid(begun)]).await.unwrap();

    let store = PostgresStore::open_with(url(), PostgresOptions::default().schema(&schema)).await.unwrap();
    let worker = store.register(3, &worker_info(&["order"])).await.unwrap();
    let claim = Claim { worker: worker.worker, epoch: worker.epoch, number: 1, ..newest.claim(9) };
    let claimed = store.claim(&claim).await.unwrap().records;
    let keys: Vec<Key> = claimed.iter().map(|record| record.execution.key).collect();
    assert_eq!(keys, [begun, fresh], "ordered by their age");
    assert_eq!(claimed[0].checkpoints.len(), 1, "the recorded step is kept");
    let loaded = store.load(&[ExecutionId::Key(ended)], Detail::Full).await.unwrap().remove(0).unwrap();
    assert_eq!((loaded.execution.status, loaded.execution.placement), (Status::Completed, None));
}

/// Keys of version 3 end in ten random bits.
#[tokio::test]
async fn inbox_rows_of_version_3_become_executions() {
    let newest = Fixture::new().await;
    let schema = PostgresServer::shared().fresh_schema_name();
    let sql = client("public").await;
    let versions = [
        include_str!("../../../crates/postgres/migrations/V1__initial.sql"),
        include_str!("../../../crates/postgres/migrations/V2__queues.sql"),
        include_str!("../../../crates/postgres/migrations/V3__claims.sql"),
    ];
    sql.batch_execute(&format!(
        "CREATE SCHEMA {schema}; SET search_path = {schema}; {};
         CREATE TABLE schema_version (LIKE {newest}.schema_version INCLUDING ALL);
         INSERT INTO schema_version SELECT * FROM {newest}.schema_version WHERE version <= 3",
        versions.concat(),
        newest = newest.schema
    ))
    .await
    .unwrap();
    let mut received = Vec::new();
    for (n, tail) in [[0xff, 0xff], [0xbe, 0x05], [0x81, 0x00], [0x80, 0x00]].into_iter().enumerate() {
        let mut bytes = *Key::mint(0).as_bytes();
        bytes[14..].copy_from_slice(&tail);
        received.push(Key::from_bytes(bytes));
        let id = (n == 1).then_some("mine");
        let insert = "INSERT INTO inbox (put_at, shard, key, workflow, workflow_id, attributes, input) \
                      VALUES ('1960-01-01', 1, $1, 'order', $2, '{\"a\": \"x\"}', '\\x0001')";
        sql.execute(insert, &[&uuid(received[n]), &id]).await.unwrap();
    }

    let store = PostgresStore::open_with(url(), PostgresOptions::default().schema(&schema)).await.unwrap();
    let worker = store.register(3, &worker_info(&["order"])).await.unwrap();
    let claim = Claim { worker: worker.worker, epoch: worker.epoch, number: 1, ..newest.claim(9) };
    let claimed = store.claim(&claim).await.unwrap().records;
    assert_eq!(store.dead_letters(9).await.unwrap(), []);
    let keys: Vec<Key> = claimed.iter().map(|record| record.execution.key).collect();
    assert!(keys.iter().all(|key| key.shard() == 0), "{keys:?}");
    let begins = |key: &Key| key.as_bytes()[..14].to_vec();
    assert_eq!(keys.iter().map(begins).collect::<Vec<_>>(), received.iter().map(begins).collect::<Vec<_>>());
    // an outbox returned the text of the key as the workflow_id
    for (n, key) in received.iter().enumerate() {
        let id = if n == 1 { "mine".to_owned() } else { key.to_string() };
        let id = if n == 3 { ExecutionId::Key(*key) } else { ExecutionId::Given(id.into()) };
        let found = store.load(&[id], Detail::Full).await.unwrap().remove(0).unwrap().execution;
        assert_eq!(found.key, keys[n]);
        assert_eq!(found.attributes.iter().collect::<Vec<_>>(), [("a", "x")]);
    }
}

#[tokio::test]
async fn outdated_engine_requeues_executions_before_migration() {
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = || PostgresOptions::default().schema(&schema);
    let workflow = Workflow::new("order", |mut cx: Context, naps: u32| async move {
        for _ in 0..naps {
            cx.sleep(Duration::from_millis(50)).await;
        }
        cx.step("end", async || BodyResult::Ok(naps)).await
    });
    let old = Arc::new(PostgresStore::open_with(url(), options()).await.unwrap());
    let (old, _) = open_engine_on(old, |b| b.register(&workflow)).await;
    // one execution finishes in the meantime, the other does not
    let [short, long] = [5, 100_000];
    old.start(&workflow, short).workflow_id("short").await.unwrap();
    old.start(&workflow, long).workflow_id("long").await.unwrap();
    PostgresStore::stop_older_workers(url(), options(), 99).await.unwrap();
    let error = old.start(&workflow, 1).await.unwrap_err();
    assert!(matches!(error, Error::NewerSchema { found: 99, supported: 11 }), "{error}");
    let error = PostgresStore::open_with(url(), options()).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 99, supported: 11 }), "{error}");
    // then the newer program, or this one again
    let sql = client(&schema).await;
    let rows = "SELECT workflow_id, status, owner, recoveries FROM executions ORDER BY workflow_id";
    let rows: Vec<(String, i16, Option<i64>, i32)> = (sql.query(rows, &[]).await.unwrap().iter())
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get::<_, Option<i32>>(3).unwrap_or_default()))
        .collect();
    let [queued, completed] = [Status::Queued, Status::Completed].map(|status| status as i16);
    assert_eq!(rows, [("long".into(), queued, None, 0), ("short".into(), completed, None, 0)]);
    sql.batch_execute("UPDATE shard SET oldest_engine = 6").await.unwrap();
    let new = Arc::new(PostgresStore::open_with(url(), options()).await.unwrap());
    let (new, _) = open_engine_on(new, |b| b.register(&workflow)).await;
    assert_eq!(new.get::<u32>("short").await.unwrap().result().await.unwrap(), short);
    assert_eq!(new.run(&workflow, 1).await.unwrap(), 1);
    shut_down(new).await;
}

#[tokio::test]
async fn migration_is_rejected_while_older_workers_run() {
    let db = Fixture::new().await;
    let older = "DELETE FROM schema_version WHERE version >= 4; \
                 UPDATE workers SET lease_expires_at = clock_timestamp() + interval '1 minute'";
    db.sql.batch_execute(older).await.unwrap();
    let options = || PostgresOptions::default().schema(&db.schema);
    let error = PostgresStore::open_with(url(), options()).await.unwrap_err();
    let words = ["workers of an older program", "(pid ", "stop them, then run stepfast db migrate"];
    let has_words = |reason: &str| {
        words.iter().all(|words| reason.contains(words)) && reason.matches("(pid ").count() == 1
    };
    assert!(has_words(reason(&error)), "{error}");
    let error = PostgresStore::migrate(url(), options(), None, false).await.unwrap_err();
    assert!(has_words(reason(&error)), "{error}");
}

#[tokio::test]
async fn stopping_engine_opens_connections_it_needs() {
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = || PostgresOptions::default().schema(&schema).application_name(&schema);
    let (begun, ending) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let child = {
        let (begun, ending) = (begun.clone(), ending.clone());
        Workflow::new("child", move |mut cx: Context, n: u32| {
            let (begun, ending) = (begun.clone(), ending.clone());
            async move {
                let wait = async || {
                    begun.notify_one();
                    ending.notified().await;
                    BodyResult::Ok(n + 1)
                };
                cx.step("wait", wait).await
            }
        })
    };
    let elsewhere = child.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, n: u32| {
        let child = elsewhere.clone();
        async move { cx.child(&child, n).queue("elsewhere").await }
    });
    let open = async || Arc::new(PostgresStore::open_with(url(), options()).await.unwrap());
    let queue = || Queue::new("elsewhere");
    let (other, _) = open_engine_on(open().await, |b| b.register(&child).queue(queue())).await;
    let (engine, _) =
        open_engine_on(open().await, |b| b.register(&parent).register(&child).serve_queues([DEFAULT_QUEUE]))
            .await;
    let handle = engine.start(&parent, 6).workflow_id("waits").await.unwrap();
    begun.notified().await;
    let sql = client(&schema).await;
    sql.batch_execute("UPDATE shard SET oldest_engine = 99").await.unwrap();
    for role in ["reader", "control"] {
        end_sessions(&sql, &format!("{schema} {role}")).await;
    }
    ending.notify_one();
    assert_eq!(handle.result().await.unwrap(), 7);
    for engine in [engine, other] {
        let error = engine.work(Duration::ZERO).await.unwrap_err();
        assert!(matches!(error, Error::NewerSchema { found: 99, supported: 11 }), "{error}");
    }
    let workers: i64 = sql.query_one("SELECT count(*) FROM workers", &[]).await.unwrap().get(0);
    assert_eq!(workers, 0, "the engines have closed their registrations");
    let rows = sql.query("SELECT status, recoveries FROM executions", &[]).await.unwrap();
    let rows: Vec<(i16, i32)> =
        rows.iter().map(|row| (row.get(0), row.get::<_, Option<i32>>(1).unwrap_or_default())).collect();
    assert_eq!(rows, [(Status::Completed as i16, 0); 2]);
}

#[tokio::test]
async fn engine_stops_when_statements_fail_on_newer_schema() {
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = PostgresOptions::default().schema(&schema);
    let workflow = Workflow::new("order", |mut cx: Context, _: u32| async move {
        cx.step("endless", async || std::future::pending::<Result<u32, stepfast_core::Failure>>().await).await
    });
    let store = Arc::new(PostgresStore::open_with(url(), options).await.unwrap());
    let (engine, _) = open_engine_on(store, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).workflow_id("kept").await.unwrap();
    let sql = client(&schema).await;
    // as a migration of a newer engine does
    sql.batch_execute(
        "BEGIN; ALTER TABLE workers RENAME COLUMN lease_ms TO lease_millis; \
         ALTER TABLE lanes RENAME COLUMN last_number TO last; \
         INSERT INTO schema_version SELECT 99, 'future', applied_on, checksum FROM schema_version LIMIT 1; COMMIT",
    )
    .await
    .unwrap();
    for error in [handle.result().await.unwrap_err(), engine.start(&workflow, 2).await.unwrap_err()] {
        assert!(matches!(error, Error::NewerSchema { found: 99, supported: 11 }), "{error}");
    }
    let error = engine.work(Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::NewerSchema { found: 99, supported: 11 }), "{error}");
    let statuses = "SELECT status FROM executions";
    let status: i16 = sql.query_one(statuses, &[]).await.unwrap().get(0);
    assert_eq!(status, Status::Running as i16, "the execution is left to an engine that supports the schema");
}

#[tokio::test]
async fn store_opened_before_migration_registers_no_worker() {
    let db = Fixture::new().await;
    db.sql.batch_execute("UPDATE shard SET oldest_engine = 99").await.unwrap();
    let error = db.store.register(1, &worker_info(&[])).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 99, supported: 11 }), "{error}");
}

#[tokio::test]
async fn store_that_must_exist_is_not_migrated() {
    let db = Fixture::new().await;
    let older = "DELETE FROM schema_version WHERE version >= 4; DELETE FROM workers";
    db.sql.batch_execute(older).await.unwrap();
    let options = PostgresOptions::default().schema(&db.schema).must_exist(true);
    let error = PostgresStore::open_with(url(), options).await.unwrap_err();
    let words = ["has version 3", "needs version 11", "stepfast db migrate"];
    assert!(words.iter().all(|words| reason(&error).contains(words)), "{error}");
}

#[tokio::test]
async fn large_schema_is_migrated_by_operator_only() {
    let db = Fixture::new().await;
    let older = "DELETE FROM schema_version WHERE version >= 4; DELETE FROM workers; \
                 UPDATE pg_class SET reltuples = 2000000 WHERE oid = 'executions'::regclass";
    db.sql.batch_execute(older).await.unwrap();
    let options = PostgresOptions::default().schema(&db.schema);
    let error = PostgresStore::open_with(url(), options).await.unwrap_err();
    let words = ["has version 3", "needs version 11", "2000000 executions", "stepfast db migrate"];
    assert!(words.iter().all(|words| reason(&error).contains(words)), "{error}");
}

#[tokio::test]
async fn large_schema_without_statistics_is_migrated_by_operator_only() {
    let db = Fixture::new().await;
    // as after a restore: 160 MB that the server has not analyzed
    let older = "ALTER TABLE executions SET (autovacuum_enabled = false); \
                 INSERT INTO executions (created_at, status, key, workflow, input) \
                 SELECT now(), 4, gen_random_uuid(), 'w', convert_to(repeat('x', 1900), 'UTF8') \
                 FROM generate_series(1, 42000); \
                 UPDATE pg_class SET reltuples = -1 WHERE oid = 'executions'::regclass; \
                 DELETE FROM schema_version WHERE version >= 4; DELETE FROM workers";
    db.sql.batch_execute(older).await.unwrap();
    let options = PostgresOptions::default().schema(&db.schema);
    let error = PostgresStore::open_with(url(), options).await.unwrap_err();
    let words = ["has version 3", "executions are stored", "stepfast db migrate"];
    assert!(words.iter().all(|words| reason(&error).contains(words)), "{error}");
    db.sql.batch_execute("DROP TABLE executions CASCADE").await.unwrap();
}

#[tokio::test]
async fn connection_to_another_database_is_rejected() {
    let db = Fixture::new().await;
    let about = db.store.info();
    let with = |id: &str| format!("{}?store_id={id}", url());
    let options = || PostgresOptions::default().schema(&db.schema);
    PostgresStore::open_with(&with(&about.store_id), options()).await.unwrap();
    let error = PostgresStore::open_with(&with(&Uuid::nil().to_string()), options()).await.unwrap_err();
    assert!(reason(&error).contains(&about.store_id) && reason(&error).contains("store_id"), "{error}");
    // as if the URL led to another server now
    db.sql.batch_execute("UPDATE shard SET store_id = gen_random_uuid()").await.unwrap();
    let error = db.store.load(&[ExecutionId::Key(Key::mint(0))], Detail::Outcome).await.unwrap_err();
    assert!(error.to_string().contains("is now another database"), "{error}");
}
