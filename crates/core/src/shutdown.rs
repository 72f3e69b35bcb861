//! The end of an engine: in good order, and within its time.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::LONGEST;
use crate::engine::{Core, all_ended};
use crate::error::Error;
use crate::run::Interrupt;
use crate::worker::Worker;

/// What ends the worker.
pub(crate) struct Shutdown {
    pub(crate) grace: Duration,
    pub(crate) done: oneshot::Sender<()>,
}

impl Worker {
    /// Hands back what runs, flushes what is staged, gives up the registration.
    pub(crate) async fn shut_down(&mut self, Shutdown { grace, done }: Shutdown) {
        let core = self.core.clone();
        let deadline = Instant::now() + grace.min(LONGEST);
        core.begin_closing();
        if core.running() > 0 {
            tracing::info!(running = core.running(), "closing: what runs is handed back");
        }
        loop {
            for run in core.runs.all() {
                run.interrupt(Interrupt::HandBack);
                crate::crash_point!("shutdown hands back");
            }
            self.renew_registration(deadline).await;
            let freed = core.worker.freed.notified();
            if core.running() == 0 {
                break;
            }
            if tokio::time::timeout_at(deadline.min(Instant::now() + Duration::from_millis(50)), freed)
                .await
                .is_err()
                && Instant::now() >= deadline
            {
                break;
            }
        }
        for lane in core.lanes() {
            lane.close();
        }
        let ended = all_ended(std::mem::take(&mut self.lanes_ended));
        let mut ended = std::pin::pin!(ended);
        let soon = Instant::now() + Duration::from_millis(100);
        let is_expelled = core.is_outdated() && core.worker.is_fenced.load(SeqCst);
        let deadline = if is_expelled { soon } else { deadline.max(soon) };
        let has_ended = loop {
            // what callers have staged needs a registration to land under
            self.renew_registration(deadline).await;
            tokio::select! {
                biased;
                () = &mut ended => break true,
                () = core.worker.fenced.notified() => {}
                () = tokio::time::sleep_until(deadline) => break false,
            }
        };
        if !has_ended {
            tracing::error!("the database does not answer; what is staged is refused");
            for lane in core.lanes() {
                lane.give_up();
            }
            ended.await;
        }
        crate::crash_point!("shutdown lanes ended");
        let worker = core.registration().worker;
        let closing = core.store.close(worker);
        match tokio::time::timeout_at(deadline.max(Instant::now() + Duration::from_secs(1)), closing).await {
            Ok(Ok(())) => tracing::info!(worker = worker.0, "the {} has ended", core.info.noun()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not give up the registration; others will notice");
            }
            Err(_) => tracing::warn!("could not give up the registration in time; others will notice"),
        }
        let _ = done.send(());
    }

    /// Registers anew, before `deadline`, if the registration is over, unless the program is too old to.
    async fn renew_registration(&mut self, deadline: Instant) {
        let core = self.core.clone();
        while core.worker.is_fenced.load(SeqCst) && !core.is_outdated() {
            let registering = tokio::time::timeout_at(deadline, self.register_anew());
            if registering.await.is_err() {
                return;
            }
        }
    }
}

/// Asks the worker to end the engine, and waits until it has.
pub(crate) async fn shut_down(core: &Arc<Core>, grace: Duration) -> Result<(), Error> {
    let (done, ended) = oneshot::channel();
    core.send_shutdown(Shutdown { grace, done });
    if ended.await.is_err() {
        // somebody else has asked before
        core.stopped().await;
    }
    Ok(())
}

/// Lets what runs come to its end, takes nothing new, and shuts down when nothing runs any more or `grace` is over.
pub(crate) async fn drain(core: &Arc<Core>, grace: Duration) -> Result<(), Error> {
    drained(core, grace).await;
    shut_down(core, HAND_BACK).await
}

/// Takes nothing new from here on; returns when nothing runs any more, or when `grace` is over: then false.
pub(crate) async fn drained(core: &Arc<Core>, grace: Duration) -> bool {
    core.begin_draining();
    tracing::info!(running = core.running(), "draining: nothing new is taken");
    let nothing_runs = async {
        loop {
            let freed = core.worker.freed.notified();
            if core.running() == 0 {
                return;
            }
            freed.await;
        }
    };
    let is_drained = tokio::time::timeout(grace, nothing_runs).await.is_ok();
    if !is_drained {
        tracing::info!(running = core.running(), "the time to drain is over: what runs is handed back");
    }
    is_drained
}

/// How long what is left may take to be handed back.
const HAND_BACK: Duration = Duration::from_secs(5);
