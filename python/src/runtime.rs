//! The one tokio runtime of the process.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

/// The runtime that engines, their timers and their connections live on; started by the first engine.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let built =
            Builder::new_multi_thread().worker_threads(2).thread_name("stepfast").enable_all().build();
        // without threads there is no engine, and nothing to tell it to
        built.unwrap_or_else(|error| panic!("cannot start the threads of the engine: {error}"))
    })
}
