//! The worker: a thread that keeps an engine's registration alive, and claims executions to run.
//!
//! Its loops run side by side, so that none waits for another: heartbeats, which renew the registration; claims; the
//! takeover of dead workers; and reports of unclaimable executions. All end with the registration and restart under the
//! next one.

mod claimer;
mod heartbeats;
mod launch;
mod lost_claims;
mod quarantine;
mod shutdown;
mod takeover;
mod unclaimable;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::time_since_boot;
use crate::error::Error;
use crate::failure::Failure;
use crate::runtime::inner::Core;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::run::Interrupt;
use crate::store::StoreError;
use crate::thread::spawn_on_thread;
use crate::worker::claimer::Claimer;
use crate::worker::heartbeats::Heartbeats;
use crate::worker::takeover::run_takeovers;

/// The pause before another attempt to register.
const REGISTER_AGAIN_AFTER: Duration = Duration::from_millis(200);

pub(crate) struct Worker {
    pub(crate) core: Arc<Core>,
    pub(crate) lanes_ended: Vec<oneshot::Receiver<()>>,
    heartbeats: Heartbeats,
    claimer: Claimer,
}

/// Starts the worker's thread. The first heartbeat, which finds what dead workers left, comes at once.
pub(crate) fn spawn(
    core: Arc<Core>,
    claim_lane: u16,
    lanes_ended: Vec<oneshot::Receiver<()>>,
    shutdown: oneshot::Receiver<ShutdownRequest>,
) -> Result<(), Error> {
    let mut worker = Worker {
        heartbeats: Heartbeats::new(core.clone()),
        claimer: Claimer::new(core.clone(), claim_lane),
        core,
        lanes_ended,
    };
    spawn_on_thread("stepfast-worker".into(), async move {
        let core = worker.core.clone();
        if let Err(panic) = AssertUnwindSafe(worker.run(shutdown)).catch_unwind().await {
            core.poison(&format!("the worker failed: {}", Failure::from_panic(&*panic).message));
        }
        core.worker.stopped.send_replace(true);
        core.watch.notify_all();
    })
}

impl Worker {
    /// Works until a shutdown is requested, whatever the store is doing then.
    async fn run(&mut self, shutdown: oneshot::Receiver<ShutdownRequest>) {
        let shutdown = tokio::select! {
            biased;
            shutdown = shutdown => shutdown,
            () = self.work() => return,
        };
        if let Ok(shutdown) = shutdown {
            self.shut_down(shutdown).await;
        }
    }

    async fn work(&mut self) {
        let core = self.core.clone();
        loop {
            if core.worker.is_fenced.load(SeqCst) {
                self.register_again().await;
            }
            tokio::select! {
                () = self.heartbeats.run() => {}
                () = self.claimer.run() => {}
                () = run_takeovers(&core) => {}
                () = crate::worker::unclaimable::report_unclaimable(&core), if !core.info.is_client => {}
                () = core.worker.fenced.notified() => {}
            }
        }
    }

    /// Registers again after another worker has taken over, or the registration was lost. Executions that run here are
    /// disowned; Writes of callers continue under the new registration.
    pub(crate) async fn register_again(&mut self) {
        let core = self.core.clone();
        tracing::warn!("this worker was taken over; registering again");
        let lanes = core.lanes();
        let over = core.registration().worker;
        for lane in lanes {
            lane.end_generation(over);
        }
        // from here on, starts belong to the next registration
        for run in core.runs.all() {
            if run.is_lost() {
                run.interrupt(Interrupt::Lost);
            }
        }
        let (asked_at, asked_since_boot, registration) = loop {
            // a lane may only now have found an older fence: then this registration is alive, and would keep what it
            // owns
            let closed = core.store.close(over).await;
            let (asked_at, asked_since_boot) = (Instant::now(), time_since_boot());
            let registered = match closed {
                Ok(()) => core.store.register(self.claimer.lane + 1, &core.info).await,
                Err(error) => Err(error),
            };
            match registered {
                Ok(registration) => break (asked_at, asked_since_boot, registration),
                Err(StoreError::NewerSchema { found, supported }) => {
                    core.expel((found, supported));
                    // the engine is about to end
                    return std::future::pending().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot register again");
                    tokio::time::sleep(REGISTER_AGAIN_AFTER).await;
                }
            }
        };
        tracing::info!(worker = registration.worker.0, "registered again");
        *core.registration.write().unwrap_or_else(std::sync::PoisonError::into_inner) = registration;
        core.store_time.correct(asked_at, registration.now);
        core.lease.renew(asked_since_boot);
        core.worker.is_fenced.store(false, SeqCst);
        self.heartbeats = Heartbeats::new(core.clone());
        self.claimer = Claimer::new(core.clone(), self.claimer.lane);
        for lane in lanes {
            lane.rebind(registration);
        }
    }
}
