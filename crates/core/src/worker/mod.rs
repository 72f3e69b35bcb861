//! The worker: a thread that looks after an engine's registration, and claims executions to run.
//!
//! Three loops, so that none waits for another: looks, which renew the registration; claims; and taking over what
//! lost workers have left. They end together when the registration does, and begin anew under the next one.

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

use crate::clock::since_boot;
use crate::error::Error;
use crate::failure::Failure;
use crate::runtime::inner::Core;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::run::Interrupt;
use crate::store::StoreError;
use crate::thread::spawn_on_thread;
use crate::worker::claimer::Claims;
use crate::worker::heartbeats::Looks;
use crate::worker::takeover::take_over;

/// Pause before another try to register.
const REGISTER_AGAIN_AFTER: Duration = Duration::from_millis(200);

pub(crate) struct Worker {
    pub(crate) core: Arc<Core>,
    pub(crate) lanes_ended: Vec<oneshot::Receiver<()>>,
    looks: Looks,
    claims: Claims,
}

/// Starts the worker's thread. Its first look, which shows what lost workers left, comes at once.
pub(crate) fn spawn(
    core: Arc<Core>,
    claim_lane: u16,
    lanes_ended: Vec<oneshot::Receiver<()>>,
    shutdown: oneshot::Receiver<ShutdownRequest>,
) -> Result<(), Error> {
    let mut worker = Worker {
        looks: Looks::new(core.clone()),
        claims: Claims::new(core.clone(), claim_lane),
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
    /// Works until it is told to end, whatever the store is doing then.
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
                self.register_anew().await;
            }
            tokio::select! {
                () = self.looks.run() => {}
                () = self.claims.run() => {}
                () = take_over(&core) => {}
                () = crate::worker::unclaimable::tell(&core), if !core.info.is_client => {}
                () = core.worker.fenced.notified() => {}
            }
        }
    }

    /// Another worker has taken over, or the registration is gone: what runs here is lost to it. Callers'
    /// Writes go on under a new registration.
    pub(crate) async fn register_anew(&mut self) {
        let core = self.core.clone();
        tracing::warn!("this worker was taken over; registering anew");
        let lanes = core.lanes();
        let over = core.registration().worker;
        for lane in lanes {
            lane.end_generation(over);
        }
        // what starts from here on belongs to the registration to come
        for run in core.runs.all() {
            if run.is_lost() {
                run.interrupt(Interrupt::Lost);
            }
        }
        let (asked_at, asked_since_boot, registration) = loop {
            // a lane may have heard of an older fence only now: then this registration is alive, and would
            // keep what it owns
            let closed = core.store.close(over).await;
            let (asked_at, asked_since_boot) = (Instant::now(), since_boot());
            let registered = match closed {
                Ok(()) => core.store.register(self.claims.lane + 1, &core.info).await,
                Err(error) => Err(error),
            };
            match registered {
                Ok(registration) => break (asked_at, asked_since_boot, registration),
                Err(StoreError::NewerSchema { found, supported }) => {
                    core.expel((found, supported));
                    // its end comes
                    return std::future::pending().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot register anew");
                    tokio::time::sleep(REGISTER_AGAIN_AFTER).await;
                }
            }
        };
        tracing::info!(worker = registration.worker.0, "registered anew");
        *core.registration.write().unwrap_or_else(std::sync::PoisonError::into_inner) = registration;
        core.store_time.correct(asked_at, registration.now);
        core.lease.renew(asked_since_boot);
        core.worker.is_fenced.store(false, SeqCst);
        self.looks = Looks::new(core.clone());
        self.claims = Claims::new(core.clone(), self.claims.lane);
        for lane in lanes {
            lane.rebind(registration);
        }
    }
}
