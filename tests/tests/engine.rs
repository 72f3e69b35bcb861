//! Runs the engine's suite on every store: one test per store and case, named `store::noun::behaviour`.

use libtest_mimic::{Arguments, Trial};
use stepfast_tests::{STORES_WITH_RUNNING_CLOCK, engine};

fn main() {
    let mut arguments = Arguments::from_args();
    // cases wait far more than they compute
    arguments.test_threads.get_or_insert(6);
    let mut trials = Vec::new();
    for (store, fresh) in STORES_WITH_RUNNING_CLOCK {
        for (noun, behaviour, run) in engine::all() {
            trials.push(Trial::test(format!("{store}::{noun}::{behaviour}"), move || {
                engine::run_case(*fresh, run).map_err(Into::into)
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
