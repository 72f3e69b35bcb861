//! Random histories: whatever several workers do, every store answers as MemoryStore does and ends up with
//! the same rows.
//!
//! A failure prints the shortest history found and keeps its seed in fixtures/histories.txt, which every later
//! run of every test here tries first. `PROPTEST_CASES=1000` makes a long run of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};
use stepfast_tests::{Fresh, STORES, StoreFixture, history, queueing, twins};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/histories.txt");
const QUEUE_SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/queue_histories.txt");

/// Lets `cases` random histories happen to fresh databases of these stores.
fn check_all<T: std::fmt::Debug>(
    cases: u32,
    seeds: &'static str,
    histories: &impl Strategy<Value = Vec<T>>,
    stores: &[(&str, Fresh)],
    replay: &impl AsyncFn(Vec<Box<dyn StoreFixture>>, &[T]),
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config.failure_persistence = Some(Box::new(FileFailurePersistence::Direct(seeds)));
    let result = TestRunner::new(config).run(histories, |ops| {
        let run = async {
            let mut fixtures = Vec::new();
            for (_, fresh) in stores {
                fixtures.push(fresh().await);
            }
            replay(fixtures, &ops).await;
        };
        catch_unwind(AssertUnwindSafe(|| runtime.block_on(run))).map_err(|panic| {
            let message = panic.downcast_ref::<String>().cloned();
            TestCaseError::fail(message.unwrap_or_else(|| "it panicked".into()))
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Lets the same history happen to each of these stores.
fn check(cases: u32, stores: &[(&str, Fresh)]) {
    check_all(cases, SEEDS, &history::histories(), stores, &async |fixtures: Vec<_>, ops: &[_]| {
        twins::replay(fixtures, ops).await;
    });
}

/// Lets a history of queues happen to a store.
fn check_queues(cases: u32, store: (&str, Fresh)) {
    check_all(
        cases,
        QUEUE_SEEDS,
        &queueing::histories(),
        &[store],
        &async |fixtures: Vec<Box<dyn StoreFixture>>, ops: &[_]| {
            queueing::replay(&*fixtures[0], ops).await;
        },
    );
}

fn store(name: &str) -> (&'static str, Fresh) {
    *STORES.iter().find(|(store, _)| *store == name).expect("a store of this name")
}

#[test]
fn memory_store_is_deterministic() {
    check(100, &[store("memory"), store("memory")]);
}

#[test]
fn sqlite_store_matches_memory_store() {
    check(40, &[store("memory"), store("sqlite")]);
}

#[test]
fn postgres_store_matches_memory_store() {
    check(24, &[store("memory"), store("postgres")]);
}

#[test]
fn all_stores_match_each_other() {
    check(8, STORES);
}

#[test]
fn memory_queues_respect_limits() {
    check_queues(200, store("memory"));
}

#[test]
fn sqlite_queues_respect_limits() {
    check_queues(60, store("sqlite"));
}

#[test]
fn postgres_queues_respect_limits() {
    check_queues(30, store("postgres"));
}
