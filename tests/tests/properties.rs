//! Random histories: whatever several workers do, every store answers as MemoryStore does and ends up with
//! the same rows.
//!
//! A failure prints the shortest history found and keeps its seed in fixtures/histories.txt, which every later
//! run of every test here tries first. `PROPTEST_CASES=1000` makes a long run of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};
use stepfast_tests::{Fresh, STORES, history, twins};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/histories.txt");

/// Lets `cases` random histories happen to a fresh database of each of these stores.
fn check(cases: u32, stores: &[(&str, Fresh)]) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config.failure_persistence = Some(Box::new(FileFailurePersistence::Direct(SEEDS)));
    let result = TestRunner::new(config).run(&history::histories(), |ops| {
        let run = async {
            let mut fixtures = Vec::new();
            for (_, fresh) in stores {
                fixtures.push(fresh().await);
            }
            twins::replay(fixtures, &ops).await;
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

fn store(name: &str) -> (&'static str, Fresh) {
    *STORES.iter().find(|(store, _)| *store == name).expect("a store of this name")
}

#[test]
fn memory_does_the_same_twice() {
    check(100, &[store("memory"), store("memory")]);
}

#[test]
fn sqlite_does_as_memory_does() {
    check(40, &[store("memory"), store("sqlite")]);
}

#[test]
fn postgres_does_as_memory_does() {
    check(24, &[store("memory"), store("postgres")]);
}

#[test]
fn all_stores_do_the_same() {
    check(8, STORES);
}
