//! Runs the engine's suite on every store: one test per store and case, named `store::noun::behaviour`.

use libtest_mimic::{Arguments, Trial};
use stepfast_tests::{GOING, scenarios};

fn main() {
    let mut arguments = Arguments::from_args();
    // cases wait for each other's machine far more than they work
    arguments.test_threads.get_or_insert(6);
    let mut trials = Vec::new();
    for (store, fresh) in GOING {
        for (noun, behaviour, run) in scenarios::all() {
            trials.push(Trial::test(format!("{store}::{noun}::{behaviour}"), move || {
                scenarios::on_fresh(*fresh, run).map_err(Into::into)
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
