//! The Postgres store through a real pgbouncer in `pool_mode=transaction`: the suite of all stores, cases of the engine,
//! killed processes, and errors that only a pooler can cause. If the installed version supports it, everything runs once
//! more through a pooler that keeps track of prepared statements (`max_prepared_statements`).
//!
//! The short form runs the cases of the engine in [`SHORT_FORM_NOUNS`]; `STEPFAST_POOLER=long` runs all of them.

#![allow(clippy::unwrap_used)] // this is test code

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use stepfast::{PostgresOptions, PostgresStore};
use stepfast_core::Store;
use stepfast_core::store::{Filter, Start, StoreError};
use stepfast_tests::chaos::Form;
use stepfast_tests::crash::{child, harness};
use stepfast_tests::engine::run_within;
use stepfast_tests::fixtures::builders;
use stepfast_tests::fixtures::pooler::{Pooler, PreparedStatements};
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use stepfast_tests::fixtures::stores::{pooled, pooled_with_running_clock};
use stepfast_tests::{conformance, engine};
use tokio_postgres::NoTls;

const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The nouns of the engine's suite that the short form runs: those whose cases depend on connections, because engines
/// wait for each other, end, or read while they write. The suite of all stores contains every statement in any case.
const SHORT_FORM_NOUNS: &[&str] = &[
    "batch",
    "batch_turns",
    "child",
    "drain",
    "multiple_engines",
    "pause",
    "queue",
    "request",
    "search",
    "wait",
];

fn main() {
    if child::run_if_requested() {
        return;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(6);
    let form = Form::from_variable("STEPFAST_POOLER");
    for noun in SHORT_FORM_NOUNS {
        assert!(engine::all().iter().any(|(it, ..)| it == noun), "the engine's suite has no noun {noun:?}");
    }
    let mut trials = Vec::new();
    for statements in PreparedStatements::supported() {
        add_trials(&mut trials, *statements, form);
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn add_trials(trials: &mut Vec<Trial>, statements: PreparedStatements, form: Form) {
    let prefix = if statements == PreparedStatements::Tracked { "prepared_statements::" } else { "" };
    for (noun, behaviour, run) in conformance::all() {
        trials.push(Trial::test(format!("{prefix}store::{noun}::{behaviour}"), move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let create = pooled(statements);
            runtime.map_err(|error| error.to_string())?.block_on(async { run(&*create().await).await });
            Ok(())
        }));
    }
    for (noun, behaviour, run) in
        engine::all().into_iter().filter(|(noun, ..)| form == Form::Long || SHORT_FORM_NOUNS.contains(noun))
    {
        trials.push(Trial::test(format!("{prefix}engine::{noun}::{behaviour}"), move || {
            engine::run_case(pooled_with_running_clock(statements), run).map_err(Into::into)
        }));
    }
    trials.push(Trial::test(format!("{prefix}killed_processes_are_taken_over"), move || killed(statements)));
    let mut add = |name: &str, run: fn(PreparedStatements) -> LocalBoxFuture<'static, ()>| {
        trials.push(Trial::test(format!("{prefix}{name}"), move || {
            run_within(TEST_TIMEOUT, move |runtime| runtime.block_on(run(statements))).map_err(Failed::from)
        }));
    };
    add("pooler_missing_in_url_is_rejected", |statements| Box::pin(undeclared_pooler(statements)));
    add("store_without_listen_sends_hints_and_waits_for_none", |statements| Box::pin(hints(statements)));
    add("server_sessions_keep_no_state", |statements| Box::pin(session_state(statements)));
}

fn direct() -> &'static str {
    PostgresServer::shared().url()
}

fn killed(statements: PreparedStatements) -> Result<(), Failed> {
    let seed = fastrand::u64(..);
    let tally = harness::kill_at_random(harness::StoreKind::Pooled(statements), 2, 3, seed, &|| {});
    if tally.violations.is_empty() && tally.kills >= 3 {
        return Ok(());
    }
    Err(format!("seed {seed}, {} kills: {:?}", tally.kills, tally.violations).into())
}

async fn undeclared_pooler(statements: PreparedStatements) {
    let url = Pooler::shared(statements).url(direct());
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

async fn hints(statements: PreparedStatements) {
    let schema = PostgresServer::shared().fresh_schema_name();
    let options = || PostgresOptions::default().schema(&schema);
    let without_listen =
        PostgresStore::open_with(&Pooler::shared(statements).store_url(direct(), false), options())
            .await
            .unwrap();
    let with_listen = PostgresStore::open_with(direct(), options()).await.unwrap();
    let register = async |store: &PostgresStore| {
        store.register(1, &stepfast_tests::fixtures::registration::worker_info(&["order"])).await.unwrap()
    };
    let (worker, listener) = (register(&without_listen).await, register(&with_listen).await.worker);
    let mut changed = std::pin::pin!(without_listen.next_hint(worker.worker));
    let is_pending = std::future::poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx).is_pending())).await;
    assert!(is_pending);
    // the first hint says that the store listens now
    with_listen.next_hint(listener).await;
    let flush = stepfast_core::store::Flush {
        worker: worker.worker,
        lane: 0,
        epoch: worker.epoch,
        number: 1,
        is_resent: false,
        is_bisecting: false,
        writes: vec![builders::write(Start {
            workflow: "order".into(),
            ..builders::start(stepfast_core::Key::mint(0), builders::queued())
        })],
    };
    without_listen.commit(&flush).await.unwrap();
    with_listen.next_hint(listener).await;
}

async fn session_state(statements: PreparedStatements) {
    let pooler = Pooler::start(PostgresServer::shared(), statements, "default_pool_size = 1");
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
