//! Shutdown of an engine, as requested through its handles: draining, and the request to the worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::Error;
use crate::runtime::inner::EngineInner;

/// A request to the worker to end the engine.
pub(crate) struct ShutdownRequest {
    /// How long to wait for the database.
    pub(crate) grace: Duration,
    /// Notified when the engine has ended.
    pub(crate) done: oneshot::Sender<()>,
}

/// Time limit for requeueing executions after a drain.
const REQUEUE_GRACE: Duration = Duration::from_secs(5);

impl EngineInner {
    /// Requests the worker to end the engine, and waits until it has ended.
    pub(crate) async fn shut_down(&self, grace: Duration) -> Result<(), Error> {
        let (done, receiver) = oneshot::channel();
        self.send_shutdown(ShutdownRequest { grace, done });
        if receiver.await.is_err() {
            // another caller was first
            self.wait_stopped().await;
        }
        Ok(())
    }

    /// Takes no new executions, lets running ones finish, and shuts down when none runs any more or `grace`
    /// has passed.
    pub(crate) async fn drain(self: &Arc<Self>, grace: Duration) -> Result<(), Error> {
        self.drain_running(grace).await;
        self.shut_down(REQUEUE_GRACE).await
    }

    /// Takes no new executions, and waits until none runs any more. Returns false if `grace` passes first.
    pub(crate) async fn drain_running(&self, grace: Duration) -> bool {
        self.begin_draining();
        tracing::info!(running = self.running_count(), "draining: no new executions are taken");
        let no_run_left = async {
            loop {
                let run_ended = self.wakeups.run_ended.notified();
                if self.running_count() == 0 {
                    return;
                }
                run_ended.await;
            }
        };
        let is_drained = tokio::time::timeout(grace, no_run_left).await.is_ok();
        if !is_drained {
            tracing::info!(running = self.running_count(), "drain timed out; requeueing running executions");
        }
        is_drained
    }
}
