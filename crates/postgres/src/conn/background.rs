//! [`BackgroundRuntime`]: the store's thread that drives the connections that belong to no lane.

use std::sync::mpsc;
use std::time::Duration;

use stepfast_core::store::StoreError;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// A thread with a runtime. Dropping this value ends the thread and closes its connections.
///
/// Callers load, list and send heartbeats from any runtime, even from one that stops soon after the call. Because this
/// thread drives the connections, they work for all callers.
#[derive(Debug)]
pub(crate) struct BackgroundRuntime {
    runtime: Handle,
    _stop: oneshot::Sender<()>,
}

impl BackgroundRuntime {
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
            Err(_) => Err(open("the store's thread did not start".into())),
        }
    }

    /// Returns a sleep that works in any runtime, because this thread has the timer.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        let _entered = self.runtime.enter();
        sleep(duration)
    }

    /// Returns the thread's runtime.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
