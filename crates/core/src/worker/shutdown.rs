//! The shutdown of a worker: in good order, and within its time.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::MAX_STORED_DURATION;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::run::Interrupt;
use crate::worker::Worker;

impl Worker {
    /// Requeues what runs, flushes what is staged, and releases the registration.
    pub(crate) async fn shut_down(&mut self, ShutdownRequest { grace, done }: ShutdownRequest) {
        let core = self.core.clone();
        let deadline = Instant::now() + grace.min(MAX_STORED_DURATION);
        core.begin_closing();
        if core.running_count() > 0 {
            tracing::info!(running = core.running_count(), "closing: running executions are requeued");
        }
        loop {
            for run in core.runs.all() {
                run.interrupt(Interrupt::HandBack);
                crate::crash_point!("shutdown hands back");
            }
            self.renew_registration(deadline).await;
            let freed = core.worker.freed.notified();
            if core.running_count() == 0 {
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
            // the staged Writes of callers need a registration to be committed under
            self.renew_registration(deadline).await;
            tokio::select! {
                biased;
                () = &mut ended => break true,
                () = core.worker.fenced.notified() => {}
                () = tokio::time::sleep_until(deadline) => break false,
            }
        };
        if !has_ended {
            tracing::error!("the database is unreachable; staged writes are dropped");
            for lane in core.lanes() {
                lane.abandon();
            }
            ended.await;
        }
        crate::crash_point!("shutdown lanes ended");
        let worker = core.registration().worker;
        let closing = core.store.close(worker);
        match tokio::time::timeout_at(deadline.max(Instant::now() + Duration::from_secs(1)), closing).await {
            Ok(Ok(())) => tracing::info!(worker = worker.0, "the {} has ended", core.info.noun()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not release the registration; it is left to other workers");
            }
            Err(_) => tracing::warn!("could not release the registration in time; it is left to other workers"),
        }
        let _ = done.send(());
    }

    /// Registers again before `deadline` if the registration is fenced, unless this program is too old for the schema.
    async fn renew_registration(&mut self, deadline: Instant) {
        let core = self.core.clone();
        while core.worker.is_fenced.load(SeqCst) && !core.is_outdated() {
            let registering = tokio::time::timeout_at(deadline, self.register_again());
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
