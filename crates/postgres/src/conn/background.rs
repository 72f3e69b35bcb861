//! A thread of the store's own that drives the connections which belong to no lane.

use std::sync::mpsc;
use std::time::Duration;

use stepfast_core::store::StoreError;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// The thread; it ends when this is dropped, and its connections with it.
///
/// Loads, lists and looks come from any runtime, also from one that nobody polls a moment later; driven
/// here, their connections work for all of them.
#[derive(Debug)]
pub(crate) struct Background {
    runtime: Handle,
    _stop: oneshot::Sender<()>,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Self, StoreError> {
        let open = |reason: String| StoreError::Open { store: "the Postgres store".into(), reason };
        let (stop, stopped) = oneshot::channel();
        let (ready, runtime) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("stepfast-postgres".into())
            .spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => {
                        let _ = ready.send(Ok(runtime.handle().clone()));
                        let _ = runtime.block_on(stopped);
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            })
            .map_err(|error| open(format!("cannot start a thread: {error}")))?;
        match runtime.recv() {
            Ok(Ok(runtime)) => Ok(Self { runtime, _stop: stop }),
            Ok(Err(error)) => Err(open(format!("cannot start a runtime: {error}"))),
            Err(_) => Err(open("its thread did not start".into())),
        }
    }

    /// Ends after `duration`, whatever runtime the caller has.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        let _entered = self.runtime.enter();
        sleep(duration)
    }

    /// Its runtime.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
