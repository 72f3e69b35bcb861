//! The Postgres store through a real pgbouncer in `pool_mode=transaction`: the suite of all stores, the engine's
//! own, processes that are killed, and what only a proxy can get wrong.

#![allow(clippy::unwrap_used)] // this is test code

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use stepfast::{PostgresOptions, PostgresStore};
use stepfast_core::Store;
use stepfast_core::store::{Filter, StoreError};
use stepfast_tests::fixture::{POOLED, POOLED_GOING};
use stepfast_tests::pooler::Pooler;
use stepfast_tests::postgres_server::PostgresServer;
use stepfast_tests::scenarios::within;
use stepfast_tests::{conformance, rig, scenarios, victim};
use tokio_postgres::NoTls;

const PATIENCE: Duration = Duration::from_secs(120);

fn main() {
    if victim::run_if_asked() {
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
    for (noun, behaviour, run) in scenarios::all() {
        trials.push(Trial::test(format!("engine::{noun}::{behaviour}"), move || {
            scenarios::on_fresh(POOLED_GOING, run).map_err(Into::into)
        }));
    }
    trials.push(Trial::test("killed_processes_are_taken_over", killed));
    trials.push(case("a_proxy_that_the_url_does_not_speak_of_is_refused", unannounced));
    trials.push(case("without_listen_nobody_waits_for_hints_and_others_are_told", hints));
    trials.push(case("nothing_of_a_session_stays_behind", traces));
    libtest_mimic::run(&arguments, trials).exit();
}

fn case<F: Future<Output = ()> + 'static>(name: &'static str, run: fn() -> F) -> Trial {
    Trial::test(name, move || within(PATIENCE, move |runtime| runtime.block_on(run())).map_err(Failed::from))
}

fn direct() -> &'static str {
    PostgresServer::shared().url()
}

fn killed() -> Result<(), Failed> {
    let seed = fastrand::u64(..);
    let tally = rig::at_random(rig::Kind::Pooled, 2, 3, seed, &|| {});
    if tally.violations.is_empty() && tally.kills >= 3 {
        return Ok(());
    }
    Err(format!("seed {seed}, {} kills: {:?}", tally.kills, tally.violations).into())
}

async fn unannounced() {
    let url = Pooler::shared().url(direct());
    let schema = PostgresServer::shared().schema();
    let options = PostgresOptions::default().schema(&schema);
    let error = PostgresStore::open_with(&url, options).await.unwrap_err();
    let StoreError::Open { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("pooling=transaction") && reason.contains("listen="), "{reason}");
    // an option that the proxy cannot pass on
    let url = format!("{url}?pooling=transaction&options=-c%20work_mem%3D1MB");
    let error = PostgresStore::open(&url).await.unwrap_err().to_string();
    assert!(error.contains("remove `options`"), "{error}");
}

async fn hints() {
    let schema = PostgresServer::shared().schema();
    let options = || PostgresOptions::default().schema(&schema);
    let deaf =
        PostgresStore::open_with(&Pooler::shared().store_url(direct(), false), options()).await.unwrap();
    let hearing = PostgresStore::open_with(direct(), options()).await.unwrap();
    let mut changed = std::pin::pin!(deaf.next_hint());
    let is_pending = std::future::poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx).is_pending())).await;
    assert!(is_pending);
    // the first is that it listens
    hearing.next_hint().await;
    let worker = deaf.register(1, &stepfast_tests::worker::info(&[])).await.unwrap();
    let flush = stepfast_core::store::Flush {
        worker: worker.worker,
        lane: 0,
        epoch: worker.epoch,
        number: 1,
        is_resent: false,
        is_bisecting: false,
        writes: vec![stepfast_core::store::Write::Wake(stepfast_core::Key::mint(0))],
    };
    deaf.commit(&flush).await.unwrap();
    hearing.next_hint().await;
}

async fn traces() {
    let pooler = Pooler::start(PostgresServer::shared(), "default_pool_size = 1");
    let name = PostgresServer::shared().schema();
    let options = PostgresOptions::default().schema(&name);
    let store = PostgresStore::open_with(&pooler.store_url(direct(), false), options).await.unwrap();
    let worker = store.register(1, &stepfast_tests::worker::info(&[])).await.unwrap();
    store.list(&Filter::default()).await.unwrap();
    store.close(worker.worker).await.unwrap();
    // the one connection of the server that all of it went through
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
