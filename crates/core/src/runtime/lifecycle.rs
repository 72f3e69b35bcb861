//! The end of an engine as its handles see it: draining, and asking the worker to shut down.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::Error;
use crate::runtime::inner::Core;

/// Asks the worker to end the engine.
pub(crate) struct ShutdownRequest {
    /// How long the database may take to reply.
    pub(crate) grace: Duration,
    /// Notified when the engine has ended.
    pub(crate) done: oneshot::Sender<()>,
}

/// How long the end may take of executions that are handed back after a drain.
const HAND_BACK: Duration = Duration::from_secs(5);

impl Core {
    /// Asks the worker to end the engine, and waits until it has.
    pub(crate) async fn shut_down(&self, grace: Duration) -> Result<(), Error> {
        let (done, ended) = oneshot::channel();
        self.send_shutdown(ShutdownRequest { grace, done });
        if ended.await.is_err() {
            // another caller has asked before
            self.stopped().await;
        }
        Ok(())
    }

    /// Lets what runs come to its end, takes nothing new, and shuts down when nothing runs any more or `grace` is over.
    pub(crate) async fn drain(self: &Arc<Self>, grace: Duration) -> Result<(), Error> {
        self.drained(grace).await;
        self.shut_down(HAND_BACK).await
    }

    /// Takes nothing new from here on; returns when nothing runs any more, or when `grace` is over: then false.
    pub(crate) async fn drained(&self, grace: Duration) -> bool {
        self.begin_draining();
        tracing::info!(running = self.running_count(), "draining: nothing new is taken");
        let nothing_runs = async {
            loop {
                let freed = self.worker.freed.notified();
                if self.running_count() == 0 {
                    return;
                }
                freed.await;
            }
        };
        let is_drained = tokio::time::timeout(grace, nothing_runs).await.is_ok();
        if !is_drained {
            tracing::info!(running = self.running_count(), "the time to drain is over: what runs is handed back");
        }
        is_drained
    }
}
