//! Runs the conformance suite on every store: one test per store and case, named `store::noun::behaviour`.

use libtest_mimic::{Arguments, Trial};
use stepfast_tests::{STORES, conformance};

fn main() {
    let mut trials = Vec::new();
    for (store, fresh) in STORES {
        for (noun, behaviour, run) in conformance::all() {
            trials.push(Trial::test(format!("{store}::{noun}::{behaviour}"), move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .map_err(|error| error.to_string())?;
                runtime.block_on(async { run(&*fresh().await).await });
                Ok(())
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
