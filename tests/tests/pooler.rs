//! The Postgres store through a real pgbouncer in `pool_mode=transaction`: the suite of all stores, the suite of the
//! engine, killed processes, and errors that only a pooler can cause.

#![allow(clippy::unwrap_used)] // this is test code

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use stepfast::{PostgresOptions, PostgresStore};
use stepfast_core::Store;
use stepfast_core::store::{Filter, StoreError};
use stepfast_tests::crash::{child, harness};
use stepfast_tests::engine::run_within;
use stepfast_tests::fixtures::pooler::Pooler;
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use stepfast_tests::fixtures::stores::{POOLED, POOLED_WITH_RUNNING_CLOCK};
use stepfast_tests::{conformance, engine};
use tokio_postgres::NoTls;

const TEST_TIMEOUT: Duration = Duration::from_secs(120);

fn main() {
    if child::run_if_requested() {
        return;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(6);
    let mut trials = Vec::new();
    for (noun, behaviour, run) in conformance::all() {
        trials.push(Trial::test(format!("store::{noun}::{behaviour}"), move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.map_err(|error| error.to_string())?.block_on(async { run(&*POOLED().await).await });
            Ok(())
        }));
    }
    for (noun, behaviour, run) in engine::all() {
        trials.push(Trial::test(format!("engine::{noun}::{behaviour}"), move || {
            engine::run_case(POOLED_WITH_RUNNING_CLOCK, run).map_err(Into::into)
        }));
    }
    trials.push(Trial::test("killed_processes_are_taken_over", killed));
    trials.push(case("pooler_missing_in_url_is_rejected", undeclared_pooler));
    trials.push(case("store_without_listen_sends_hints_and_waits_for_none", hints));
    trials.push(case("server_sessions_keep_no_state", session_state));
    libtest_mimic::run(&arguments, trials).exit();
}

fn case<F: Future<Output = ()> + 'static>(name: &'static str, run: fn() -> F) -> Trial {
    Trial::test(name, move || {
        run_within(TEST_TIMEOUT, move |runtime| runtime.block_on(run())).map_err(Failed::from)
    })
}

fn direct() -> &'static str {
    PostgresServer::shared().url()
}

fn killed() -> Result<(), Failed> {
    let seed = fastrand::u64(..);
    let tally = harness::kill_at_random(harness::StoreKind::Pooled, 2, 3, seed, &|| {});
    if tally.violations.is_empty() && tally.kills >= 3 {
        return Ok(());
    }
    Err(format!("seed {seed}, {} kills: {:?}", tally.kills, tally.violations).into())
}

async fn undeclared_pooler() {
    let url = Pooler::shared().url(direct());
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = PostgresOptions::default().schema(&schema);
    let error = PostgresStore::open_with(&url, options).await.unwrap_err();
    let StoreError::Open { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("pooling=transaction") && reason.contains("listen="), "{reason}");
    // an option that the pooler cannot pass on
    let url = format!("{url}?pooling=transaction&options=-c%20work_mem%3D1MB");
    let error = PostgresStore::open(&url).await.unwrap_err().to_string();
    assert!(error.contains("remove `options`"), "{error}");
}

async fn hints() {
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = || PostgresOptions::default().schema(&schema);
    let without_listen =
        PostgresStore::open_with(&Pooler::shared().store_url(direct(), false), options()).await.unwrap();
    let with_listen = PostgresStore::open_with(direct(), options()).await.unwrap();
    let mut changed = std::pin::pin!(without_listen.next_hint());
    let is_pending = std::future::poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx).is_pending())).await;
    assert!(is_pending);
    // the first hint says that the store listens now
    with_listen.next_hint().await;
    let worker =
        without_listen.register(1, &stepfast_tests::fixtures::registration::worker_info(&[])).await.unwrap();
    let flush = stepfast_core::store::Flush {
        worker: worker.worker,
        lane: 0,
        epoch: worker.epoch,
        number: 1,
        is_resent: false,
        is_bisecting: false,
        writes: vec![stepfast_core::store::Write::Wake(stepfast_core::Key::mint(0))],
    };
    without_listen.commit(&flush).await.unwrap();
    with_listen.next_hint().await;
}

async fn session_state() {
    let pooler = Pooler::start(PostgresServer::shared(), "default_pool_size = 1");
    let name = PostgresServer::shared().fresh_schema_name();
    let options = PostgresOptions::default().schema(&name);
    let store = PostgresStore::open_with(&pooler.store_url(direct(), false), options).await.unwrap();
    let worker = store.register(1, &stepfast_tests::fixtures::registration::worker_info(&[])).await.unwrap();
    store.list(&Filter::default()).await.unwrap();
    store.close(worker.worker).await.unwrap();
    // the only server connection, through which all of this went
    let (client, connection) = tokio_postgres::connect(&pooler.url(direct()), NoTls).await.unwrap();
    tokio::spawn(connection);
    for setting in ["search_path", "statement_timeout", "plan_cache_mode", "lock_timeout", "enable_seqscan"] {
        let ask = format!("SELECT setting = reset_val FROM pg_settings WHERE name = '{setting}'");
        let answer = client.simple_query(&ask).await.unwrap();
        let is_untouched = answer.iter().any(|message| {
            matches!(message, tokio_postgres::SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))
        });
        assert!(is_untouched, "{setting}");
    }
    let ask = "SELECT count(*) FROM pg_prepared_statements UNION ALL \
               SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    for message in client.simple_query(ask).await.unwrap() {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            assert_eq!(row.get(0), Some("0"));
        }
    }
}
