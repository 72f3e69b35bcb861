//! The number of connections, and the behaviour without any.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{join, join_all};
use stepfast_core::store::{Filter, StoreError};
use stepfast_core::{Context, Store, Workflow};
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_tests::engine::support::{BodyResult, open, shut_down};
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use tokio::sync::watch;
use tokio_postgres::{Client, NoTls};

use super::support::*;

/// The connections of one engine according to docs/reference/stores.md, without those for loads and lists.
const MAX_OTHER_CONNECTIONS: i64 = 8;

fn steps() -> Workflow<u32, u32> {
    Workflow::new("order", |mut cx: Context, n: u32| async move {
        for i in 0..n {
            cx.step(format!("step {i}"), async || BodyResult::Ok(i)).await?;
        }
        BodyResult::Ok(n)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_opens_no_more_connections_than_documented() {
    let name = PostgresServer::shared().fresh_schema_name();
    let readers = 3;
    let options = PostgresOptions::default().schema(&name).application_name(&name).readers(readers);
    let store = Arc::new(PostgresStore::open_with(url(), options).await.unwrap());
    let order = steps();
    let engine = open(store.clone(), |builder| builder.register(&order)).await;
    let sql = client(&name).await;
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE $1 || ' %'";
    let reading = async || {
        for _ in 0..20 {
            engine.list(&Filter::default()).await.unwrap();
            engine.count(&Filter::default()).await.unwrap();
        }
    };
    let mut load = Box::pin(async {
        let run = async |n: u32| engine.run(&order, n % 7).await.unwrap();
        join(join_all((0..300).map(run)), join_all((0..50).map(|_| reading()))).await;
    });
    let (mut max_connections, mut is_finished) = (0, false);
    while !is_finished {
        let counting = async { sql.query_one(count, &[&name]).await.unwrap().get::<_, i64>(0) };
        let counted = tokio::select! {
            () = &mut load => {
                is_finished = true;
                0
            }
            counted = counting => counted,
        };
        max_connections = max_connections.max(counted);
    }
    assert!(max_connections <= MAX_OTHER_CONNECTIONS + readers as i64, "{max_connections} connections");
    // two lanes, claims, heartbeats, and readers
    assert!(max_connections >= 4 + readers as i64, "{max_connections} connections: was there any load?");
    drop(load);
    shut_down(engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reader_waits_for_connection_in_bounded_time() {
    let db = Fixture::with(|options| options.readers(1).connect_timeout(Duration::from_secs(1))).await;
    // opens the connection
    db.store.list(&Filter::default()).await.unwrap();
    let mut blocker = client(&db.schema).await;
    let locked = blocker.transaction().await.unwrap();
    locked.batch_execute("LOCK TABLE executions IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let store = db.store.clone();
    let first = tokio::spawn(async move { store.list(&Filter::default()).await });
    wait_until_waiting(&db.sql, &db.schema).await;
    let error = db.store.list(&Filter::default()).await.unwrap_err();
    let StoreError::Unavailable(reason) = &error else { panic!("{error}") };
    assert!(reason.contains("all 1 connections") && reason.contains("readers="), "{reason}");
    locked.rollback().await.unwrap();
    first.await.unwrap().unwrap();
    db.store.list(&Filter::default()).await.unwrap();
}

/// Waits until a session waits for a lock on the schema's table `executions`.
async fn wait_until_waiting(sql: &Client, schema: &str) {
    let query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass";
    let table = format!("{schema}.executions");
    while sql.query_one(query, &[&table]).await.unwrap().get::<_, i64>(0) == 0 {}
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_read_leaves_connection_usable() {
    let db = Fixture::with(|options| options.readers(1)).await;
    let key = stepfast_core::Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    assert!(db.load(key).await.is_some());
    let mut blocker = client(&db.schema).await;
    let locked = blocker.transaction().await.unwrap();
    locked.batch_execute("LOCK TABLE checkpoints IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let store = db.store.clone();
    let abandoned = tokio::spawn(async move {
        store.load(&[stepfast_core::store::ExecutionId::Key(key)], stepfast_core::store::Detail::Full).await
    });
    let query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'checkpoints'::regclass";
    while db.sql.query_one(query, &[]).await.unwrap().get::<_, i64>(0) == 0 {}
    abandoned.abort();
    assert!(abandoned.await.unwrap_err().is_cancelled());
    locked.rollback().await.unwrap();
    // the abandoned read has left no open transaction on the connection
    db.write(vec![transition(key, QUEUED)]).await;
    assert_eq!(db.status(key).await, stepfast_core::store::Status::Queued);
}

/// Returns the warnings of this process so far, and the following ones.
fn warnings() -> watch::Receiver<Vec<String>> {
    struct WarningSink(watch::Sender<Vec<String>>);
    impl io::Write for &WarningSink {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.send_modify(|lines| lines.push(String::from_utf8_lossy(line).into_owned()));
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    static SINK: OnceLock<Arc<WarningSink>> = OnceLock::new();
    let sink = SINK.get_or_init(|| {
        let sink = Arc::new(WarningSink(watch::Sender::new(Vec::new())));
        let level = tracing_subscriber::filter::LevelFilter::WARN;
        tracing_subscriber::fmt().with_max_level(level).with_writer(sink.clone()).with_ansi(false).init();
        sink
    });
    sink.0.subscribe()
}

/// Waits until `times` warnings say that `role` has no connection left.
async fn wait_until_rejected(warnings: &mut watch::Receiver<Vec<String>>, role: &str, times: usize) {
    let is_it = |line: &&String| line.contains("no free connection") && line.contains(role);
    warnings.wait_for(|lines| lines.iter().filter(is_it).count() >= times).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_waits_without_failures_when_no_connection_is_left() {
    let name = PostgresServer::shared().fresh_schema_name();
    let options = PostgresOptions::default().schema(&name).application_name(&name);
    let role = format!("limited_{name}");
    let owner = client("public").await;
    owner.batch_execute(&format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 12")).await.unwrap();
    PostgresStore::migrate(url(), options.clone(), Some(&role), false).await.unwrap();
    let theirs = url().replace("stepfast@", &format!("{role}@"));
    let mut warnings = warnings();
    let mut connections = Vec::new();
    for _ in 0..12 {
        let (client, connection) = tokio_postgres::connect(&theirs, NoTls).await.unwrap();
        connections.push((client, tokio::spawn(connection)));
    }
    let order = steps();
    let working = tokio::spawn({
        // opening waits too, at most for the connect timeout
        let (options, theirs) = (options.connect_timeout(Duration::from_secs(60)), theirs.clone());
        async move {
            let store = Arc::new(PostgresStore::open_with(&theirs, options).await.unwrap());
            let engine = open(store, |builder| builder.register(&order)).await;
            let outputs = join_all((0..20).map(async |n| engine.run(&order, n % 4).await.unwrap())).await;
            let listed = engine.count(&Filter::default()).await.unwrap();
            shut_down(engine).await;
            (outputs, listed)
        }
    });
    wait_until_rejected(&mut warnings, &role, 1).await;
    // enough connections to open the engine, but not to work
    for (client, connection) in connections.drain(..2) {
        drop(client);
        connection.await.unwrap().unwrap();
    }
    wait_until_rejected(&mut warnings, &role, 2).await;
    for (client, connection) in connections {
        drop(client);
        connection.await.unwrap().unwrap();
    }
    let (outputs, listed) = working.await.unwrap();
    assert_eq!(outputs, (0..20).map(|n| n % 4).collect::<Vec<_>>());
    assert_eq!(listed, 20);
}
