//! The shutdown of a worker, in good order and within a time limit.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::MAX_STORED_DURATION;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::run::Interrupt;
use crate::worker::Worker;

impl Worker {
    /// Requeues the running executions, flushes the staged Writes, and releases the registration.
    pub(crate) async fn shut_down(&mut self, ShutdownRequest { grace, done }: ShutdownRequest) {
        let engine = self.engine.clone();
        let deadline = Instant::now() + grace.min(MAX_STORED_DURATION);
        engine.begin_closing();
        if engine.running_count() > 0 {
            tracing::info!(running = engine.running_count(), "closing: running executions are requeued");
        }
        loop {
            for run in engine.runs.all() {
                run.interrupt(Interrupt::Requeue);
                crate::crash_point!("shutdown requeues");
            }
            self.ensure_registered(deadline).await;
            let freed = engine.wakeups.run_ended.notified();
            if engine.running_count() == 0 {
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
        for lane in engine.lanes() {
            lane.close();
        }
        let lanes_ended = wait_for_all(std::mem::take(&mut self.lanes_ended));
        let mut lanes_ended = std::pin::pin!(lanes_ended);
        let soon = Instant::now() + Duration::from_millis(100);
        let is_expelled = engine.is_outdated() && engine.wakeups.is_fenced.load(SeqCst);
        let deadline = if is_expelled { soon } else { deadline.max(soon) };
        let have_ended = loop {
            // the staged Writes of callers can be committed only under a registration
            self.ensure_registered(deadline).await;
            tokio::select! {
                biased;
                () = &mut lanes_ended => break true,
                () = engine.wakeups.fence.notified() => {}
                () = tokio::time::sleep_until(deadline) => break false,
            }
        };
        if !have_ended {
            tracing::error!("the database is unreachable; staged writes are dropped");
            for lane in engine.lanes() {
                lane.abandon();
            }
            lanes_ended.await;
        }
        crate::crash_point!("shutdown lanes ended");
        let worker = engine.registration().worker;
        let closing = engine.store.close(worker);
        match tokio::time::timeout_at(deadline.max(Instant::now() + Duration::from_secs(1)), closing).await {
            Ok(Ok(())) => tracing::info!(worker = worker.0, "the {} has ended", engine.info.noun()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not release the registration; it is left to other workers");
            }
            Err(_) => {
                tracing::warn!("could not release the registration in time; it is left to other workers");
            }
        }
        let _ = done.send(());
    }

    /// Registers again before `deadline` if the registration is fenced, unless this program is too old for the schema.
    async fn ensure_registered(&mut self, deadline: Instant) {
        let engine = self.engine.clone();
        while engine.wakeups.is_fenced.load(SeqCst) && !engine.is_outdated() {
            let registering = tokio::time::timeout_at(deadline, self.register_again());
            if registering.await.is_err() {
                return;
            }
        }
    }
}

/// Waits until all of `receivers` have resolved.
async fn wait_for_all(receivers: Vec<oneshot::Receiver<()>>) {
    for receiver in receivers {
        let _ = receiver.await;
    }
}
