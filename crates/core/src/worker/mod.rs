//! The worker: a thread that keeps an engine's registration alive, and claims executions to run.
//!
//! The worker's loops run concurrently, so that none waits for another. They renew the registration, send heartbeats,
//! claim executions, take over dead workers, and report unclaimable executions. All loops end with the registration and
//! restart under the next one.

mod bundle;
mod claimer;
mod heartbeats;
mod launch;
mod lost_claims;
mod maintenance;
mod quarantine;
mod renewals;
mod shutdown;
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
use crate::runtime::inner::EngineInner;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::run::Interrupt;
use crate::store::StoreError;
use crate::thread::spawn_on_thread;
use crate::worker::claimer::Claimer;
use crate::worker::heartbeats::Heartbeats;
use crate::worker::maintenance::run_maintenance;
use crate::worker::renewals::Renewals;

/// The pause before another attempt to register.
const REGISTER_RETRY_DELAY: Duration = Duration::from_millis(200);

pub(crate) struct Worker {
    pub(crate) engine: Arc<EngineInner>,
    pub(crate) lanes_ended: Vec<oneshot::Receiver<()>>,
    renewals: Renewals,
    heartbeats: Heartbeats,
    claimer: Claimer,
}

/// Starts the worker's thread. The thread renews the registration at once, to detect workers that are already dead.
pub(crate) fn spawn(
    engine: Arc<EngineInner>,
    claim_lane: u16,
    lanes_ended: Vec<oneshot::Receiver<()>>,
    shutdown: oneshot::Receiver<ShutdownRequest>,
) -> Result<(), Error> {
    let mut worker = Worker {
        renewals: Renewals::new(engine.clone()),
        heartbeats: Heartbeats::new(engine.clone()),
        claimer: Claimer::new(engine.clone(), claim_lane),
        engine,
        lanes_ended,
    };
    spawn_on_thread("stepfast-worker".into(), async move {
        let engine = worker.engine.clone();
        if let Err(panic) = AssertUnwindSafe(worker.run(shutdown)).catch_unwind().await {
            engine.poison(&format!("the worker failed: {}", Failure::from_panic(&*panic).message));
        }
        engine.wakeups.is_stopped.send_replace(true);
        engine.completion_watch.notify_all();
    })
}

impl Worker {
    /// Runs the loops until a shutdown is requested, then shuts down. The shutdown drops the loops' calls to the
    /// store that are under way.
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
        let engine = self.engine.clone();
        loop {
            if engine.wakeups.is_fenced.load(SeqCst) {
                self.register_again().await;
            }
            tokio::select! {
                () = self.renewals.run() => {}
                () = self.heartbeats.run() => {}
                () = self.claimer.run() => {}
                () = run_maintenance(&engine) => {}
                () = crate::worker::unclaimable::report_unclaimable(&engine), if !engine.info.is_client => {}
                () = engine.wakeups.fence.notified() => {}
            }
        }
    }

    /// Registers again after another worker has taken this one over, or after the registration was lost. Executions
    /// that run here are disowned; Writes of callers continue under the new registration.
    pub(crate) async fn register_again(&mut self) {
        let engine = self.engine.clone();
        tracing::warn!("this worker was taken over; registering again");
        let lanes = engine.lanes();
        let old_worker = engine.registration().worker;
        for lane in lanes {
            lane.end_generation(old_worker);
        }
        // from here on, starts belong to the next registration
        for run in engine.runs.all() {
            if run.is_disowned() {
                run.interrupt(Interrupt::Disowned);
            }
        }
        let (sent_at, sent_since_boot, registration) = loop {
            // the old registration may still be alive, if a lane has found an older fence only now. A registration that
            // is alive keeps its executions, so the worker closes it first
            let closed = engine.store.close(old_worker).await;
            let (sent_at, sent_since_boot) = (Instant::now(), time_since_boot());
            let registered = match closed {
                Ok(()) => engine.store.register(self.claimer.lane + 1, &engine.info).await,
                Err(error) => Err(error),
            };
            match registered {
                Ok(registration) => break (sent_at, sent_since_boot, registration),
                Err(StoreError::NewerSchema { found, supported }) => {
                    engine.stop_outdated((found, supported));
                    // the engine is about to end
                    return std::future::pending().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot register again");
                    tokio::time::sleep(REGISTER_RETRY_DELAY).await;
                }
            }
        };
        tracing::info!(worker = registration.worker.0, "registered again");
        *engine.registration.write().unwrap_or_else(std::sync::PoisonError::into_inner) = registration;
        engine.store_clock.correct(sent_at, registration.now);
        engine.lease.begin(sent_since_boot);
        engine.wakeups.is_fenced.store(false, SeqCst);
        self.renewals = Renewals::new(engine.clone());
        self.heartbeats = Heartbeats::new(engine.clone());
        self.claimer = Claimer::new(engine.clone(), self.claimer.lane);
        for lane in lanes {
            lane.rebind(registration);
        }
    }
}
