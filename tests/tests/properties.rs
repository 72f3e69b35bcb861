//! Random histories: for all actions of several workers, every store replies as MemoryStore does, and ends with the
//! same rows.
//!
//! A failure prints the shortest history found, and saves its seed in fixtures/histories.txt. Later runs of all tests
//! here try the saved seeds first. `PROPTEST_CASES=1000` makes a long run.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};
use stepfast_tests::model::{differential, histories, queue_histories};
use stepfast_tests::{FixtureFactory, STORES, StoreFixture};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/histories.txt");
const QUEUE_SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/queue_histories.txt");

/// Replays `cases` random histories on fresh databases of these stores.
fn check_all<T: std::fmt::Debug>(
    cases: u32,
    seeds: &'static str,
    histories: &impl Strategy<Value = Vec<T>>,
    stores: &[(&str, FixtureFactory)],
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
            TestCaseError::fail(message.unwrap_or_else(|| "the replay panicked".into()))
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Replays the same histories on each of these stores.
fn check(cases: u32, stores: &[(&str, FixtureFactory)]) {
    check_all(cases, SEEDS, &histories::histories(), stores, &async |fixtures: Vec<_>, ops: &[_]| {
        differential::replay(fixtures, ops).await;
    });
}

/// Replays histories of queues on a store.
fn check_queues(cases: u32, store: (&str, FixtureFactory)) {
    check_all(
        cases,
        QUEUE_SEEDS,
        &queue_histories::histories(),
        &[store],
        &async |fixtures: Vec<Box<dyn StoreFixture>>, ops: &[_]| {
            queue_histories::replay(&*fixtures[0], ops).await;
        },
    );
}

fn store(name: &str) -> (&'static str, FixtureFactory) {
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
