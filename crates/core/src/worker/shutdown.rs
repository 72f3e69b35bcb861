//! The end of a worker: in good order, and within its time.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::LONGEST;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::run::Interrupt;
use crate::worker::Worker;

impl Worker {
    /// Hands back what runs, flushes what is staged, gives up the registration.
    pub(crate) async fn shut_down(&mut self, ShutdownRequest { grace, done }: ShutdownRequest) {
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

/// Resolves when all of `ended` have.
async fn all_ended(ended: Vec<oneshot::Receiver<()>>) {
    for receiver in ended {
        let _ = receiver.await;
    }
}
