//! Random interleavings of several engines, on every store: one test per store and world, named
//! `store::number`. `STEPFAST_SEED` repeats a run.

#![allow(clippy::print_stdout)] // a test with a main of its own

use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use stepfast_tests::model::interleavings;
use stepfast_tests::{STORES_WITH_RUNNING_CLOCK, engine};

/// Number of worlds per store, unless `STEPFAST_WORLDS` sets another.
const WORLDS: u64 = 3;
const WORLD_TIMEOUT: Duration = Duration::from_mins(3);

fn main() {
    let worlds = std::env::var("STEPFAST_WORLDS")
        .map_or(WORLDS, |worlds| worlds.parse().expect("STEPFAST_WORLDS is a number"));
    let mut arguments = Arguments::from_args();
    // worlds wait for heartbeats far more than they compute
    arguments.test_threads.get_or_insert(6);
    let seed =
        std::env::var("STEPFAST_SEED").ok().map(|seed| seed.parse().expect("STEPFAST_SEED is a number"));
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("interleavings: STEPFAST_SEED={seed}");
    let mut trials = Vec::new();
    for (store, fresh) in STORES_WITH_RUNNING_CLOCK {
        for n in 0..worlds {
            let world = move || {
                let run = move |runtime: tokio::runtime::Runtime| {
                    runtime.block_on(async {
                        interleavings::check(&*fresh().await, seed.wrapping_add(n)).await;
                    });
                };
                engine::run_within(WORLD_TIMEOUT, run)
                    .map_err(|error| format!("STEPFAST_SEED={seed}: {error}").into())
            };
            trials.push(Trial::test(format!("{store}::{n}"), world));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
