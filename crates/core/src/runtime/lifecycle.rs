//! [`Lifecycle`]: whether an engine is open, draining, closing or stopped by an error, and how it ends.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::Error;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::Interrupt;
use crate::store::{Outcome, StoreError};

/// The stage of an engine's life, and the reason of its end. An engine never returns to an earlier stage.
#[derive(Default)]
pub(super) struct Lifecycle {
    is_draining: AtomicBool,
    is_closing: AtomicBool,
    /// The reason for which the database cannot be trusted. Unset while the database can be trusted.
    poison_reason: OnceLock<String>,
    /// The newer schema that the database has or is about to get, and the newest that this program supports.
    /// Unset while the program is new enough.
    newer_schema: OnceLock<(i64, i64)>,
    /// The channel to the worker for the shutdown request. `None` after the request.
    shutdown_sender: Mutex<Option<oneshot::Sender<ShutdownRequest>>>,
}

/// A request to the worker to end the engine.
pub(crate) struct ShutdownRequest {
    /// Longest time to wait for the database.
    pub(crate) grace: Duration,
    /// Notified when the engine has ended.
    pub(crate) done: oneshot::Sender<()>,
}

/// Time limit for requeueing executions after a drain.
const REQUEUE_GRACE: Duration = Duration::from_secs(5);

/// Error message for a Write that was dropped while the engine is open.
const DROPPED_WRITE_MESSAGE: &str = "the Write was dropped: the engine lost its registration, or the database \
                                     rejected an earlier Write of the same execution";

/// Longest time for which executions may continue in an engine that is too old for the coming schema.
const OUTDATED_DRAIN_GRACE: Duration = Duration::from_secs(10);

/// A value that the runtime of an engine drops when it ends.
struct RuntimeGuard(Weak<EngineInner>);

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        let Some(engine) = self.0.upgrade() else { return };
        if engine.is_closing() || *engine.wakeups.is_stopped.borrow() {
            return;
        }
        tracing::error!(
            "the runtime of the engine has ended; the engine requeues its executions and ends: shut engines down before \
             their runtime"
        );
        let (done, _) = oneshot::channel();
        engine.send_shutdown(ShutdownRequest { grace: Duration::ZERO, done });
    }
}

impl EngineInner {
    /// Whether a drain or shutdown has begun: the engine takes no new executions.
    pub(crate) fn is_draining(&self) -> bool {
        self.lifecycle.is_draining.load(SeqCst)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.lifecycle.is_closing.load(SeqCst)
    }

    /// Sets the channel to the worker for the shutdown request.
    pub(crate) fn set_shutdown_sender(&self, shutdown: oneshot::Sender<ShutdownRequest>) {
        *self.lifecycle.shutdown_sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(shutdown);
    }

    /// Sends the worker a request to shut down. Only the first call has an effect.
    pub(crate) fn send_shutdown(&self, shutdown: ShutdownRequest) {
        let sender = self.lifecycle.shutdown_sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            self.begin_closing();
            let _ = sender.send(shutdown);
        }
    }

    /// Stops taking new executions. Executions that are started from now on wait for another worker.
    pub(crate) fn begin_draining(&self) {
        self.lifecycle.is_draining.store(true, SeqCst);
        self.wake_waiting_bundles();
    }

    pub(crate) fn begin_closing(&self) {
        self.begin_draining();
        self.lifecycle.is_closing.store(true, SeqCst);
        self.known_queues.notify_capacity();
    }

    /// Stops the engine because the database cannot be trusted.
    pub(crate) fn poison(&self, reason: &str) {
        tracing::error!(reason, "the database cannot be trusted; stopping the engine");
        let _ = self.lifecycle.poison_reason.set(reason.to_owned());
        for run in self.runs.all() {
            run.interrupt(Interrupt::Disowned);
        }
        self.completion_watch.notify_all();
    }

    /// Ends the engine when the runtime that runs its executions ends, for example because it was dropped before the
    /// engine was shut down. The worker has a runtime of its own: otherwise it would keep the executions, and claim more.
    pub(crate) fn end_with_runtime(self: &Arc<Self>) {
        let guard = RuntimeGuard(Arc::downgrade(self));
        let mut is_stopped = self.wakeups.is_stopped.subscribe();
        self.runtime.spawn(async move {
            let _guard = guard;
            let _ = is_stopped.wait_for(|is_stopped| *is_stopped).await;
        });
    }

    /// Shuts the engine down cleanly, because the database is being migrated to a schema that this program
    /// does not support.
    pub(crate) fn drain_outdated(self: &Arc<Self>, (found, supported): (i64, i64)) {
        if self.lifecycle.newer_schema.set((found, supported)).is_err() || self.is_closing() {
            return;
        }
        tracing::error!(
            found,
            supported,
            "the database is being migrated to a newer schema; this engine requeues its executions and ends: start \
             the newer version of the program"
        );
        let engine = self.clone();
        self.runtime.spawn(async move {
            if let Err(error) = engine.drain(OUTDATED_DRAIN_GRACE).await {
                tracing::error!(%error, "the engine could not shut down cleanly");
            }
        });
    }

    /// Ends the engine if a store error is fatal. Returns any other error.
    pub(crate) fn stop_if_fatal(&self, error: StoreError) -> Option<StoreError> {
        match error {
            StoreError::Corrupt(reason) => self.poison(&reason),
            StoreError::NewerSchema { found, supported } => self.stop_outdated((found, supported)),
            error => return Some(error),
        }
        None
    }

    /// Ends the engine at once and records nothing more, because the database has a schema that this program
    /// does not support. Engines of the newer version continue the executions that this engine ran.
    pub(crate) fn stop_outdated(&self, (found, supported): (i64, i64)) {
        let _ = self.lifecycle.newer_schema.set((found, supported));
        if self.is_closing() {
            return;
        }
        tracing::error!(
            found,
            supported,
            "the database was migrated to a newer schema; this engine records nothing more and ends: start the \
             newer version of the program"
        );
        for run in self.runs.all() {
            run.interrupt(Interrupt::Disowned);
        }
        let (done, _) = oneshot::channel();
        self.send_shutdown(ShutdownRequest { grace: Duration::ZERO, done });
    }

    /// Whether this program does not support the schema that the database has, or is about to get.
    pub(crate) fn is_outdated(&self) -> bool {
        self.lifecycle.newer_schema.get().is_some()
    }

    /// Whether the database cannot be trusted any more.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.lifecycle.poison_reason.get().is_some()
    }

    /// Returns an error if the engine no longer accepts calls.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if let Some(reason) = self.lifecycle.poison_reason.get() {
            return Err(Error::Corrupt(reason.clone()));
        }
        match self.lifecycle.newer_schema.get() {
            _ if !self.is_closing() => Ok(()),
            Some(&(found, supported)) => Err(Error::NewerSchema { found, supported }),
            None => Err(Error::Shutdown),
        }
    }

    /// Returns the error for calls after the engine has ended.
    pub(crate) fn closed_error(&self) -> Error {
        self.check_open().err().unwrap_or(Error::Shutdown)
    }

    /// Returns the error for a Write that was dropped.
    pub(crate) fn dropped_write_error(&self) -> Error {
        self.check_open().err().unwrap_or_else(|| Error::Unavailable(DROPPED_WRITE_MESSAGE.into()))
    }

    /// Returns the error for a Write with this outcome, which was not applied. `input` names the value of the call that the
    /// store may have rejected.
    pub(crate) fn unapplied_error(&self, input: &'static str, outcome: Outcome) -> Error {
        match outcome {
            Outcome::Rejected(reason) => Error::Invalid { input, reason: reason.to_string() },
            _ => self.dropped_write_error(),
        }
    }

    /// Sends the worker a request to end the engine, and waits until the engine has ended.
    pub(crate) async fn shut_down(&self, grace: Duration) -> Result<(), Error> {
        let (done, receiver) = oneshot::channel();
        self.send_shutdown(ShutdownRequest { grace, done });
        if receiver.await.is_err() {
            // another caller has requested the end
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

    /// Waits until the engine has ended.
    pub(crate) async fn wait_stopped(&self) {
        let _ = self.wakeups.is_stopped.subscribe().wait_for(|is_stopped| *is_stopped).await;
    }
}
