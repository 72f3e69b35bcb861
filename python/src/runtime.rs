//! The one tokio runtime of the process.

use std::cell::Cell;
use std::sync::OnceLock;

use tokio::runtime::{Builder, EnterGuard, Runtime};

thread_local! {
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread may poll what needs the runtime.
pub(crate) struct Entered(Option<EnterGuard<'static>>);

/// Enters the runtime, unless the thread has.
pub(crate) fn enter() -> Entered {
    if IS_ENTERED.replace(true) { Entered(None) } else { Entered(Some(runtime().enter())) }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.0.is_some() {
            IS_ENTERED.set(false);
        }
    }
}

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
