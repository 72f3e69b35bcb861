//! Runs the cases with faults on every store: one test per store and case, named `store::behaviour`.

use libtest_mimic::{Arguments, Trial};
use stepfast_tests::{STORES_WITH_RUNNING_CLOCK, engine};

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(6);
    let mut trials = Vec::new();
    for (store, fresh) in STORES_WITH_RUNNING_CLOCK {
        for (behaviour, run) in engine::fault_cases() {
            trials.push(Trial::test(format!("{store}::{behaviour}"), move || {
                engine::run_case(*fresh, run).map_err(Into::into)
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
