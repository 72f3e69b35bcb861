//! Random histories: whatever several workers do, every store answers as MemoryStore does and ends up with
//! the same rows.
//!
//! A failure prints the shortest history found and keeps its seed in fixtures/histories.txt, which every later
//! run of every test here tries first.

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
    let config = Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(SEEDS))),
        ..Config::default()
    };
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

#[test]
fn memory_does_the_same_twice() {
    let memory = STORES[0];
    check(150, &[memory, memory]);
}
