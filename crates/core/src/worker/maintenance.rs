//! The worker's loop for maintenance: detects dead workers, and takes them over.

use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::inner::EngineInner;
use crate::store::{Maintenance, StoreError};

/// The pause after a failed claim or takeover.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Does the maintenance after each renewal. Never returns.
pub(super) async fn run_maintenance(engine: &EngineInner) {
    loop {
        engine.wakeups.maintenance.notified().await;
        if engine.is_poisoned() {
            continue;
        }
        let registration = engine.registration();
        let found = match engine.store.maintain(registration.worker, registration.epoch).await {
            Ok(found) => found,
            Err(error) => {
                report_error(engine, error, "maintenance failed; the next renewal repeats it");
                continue;
            }
        };
        let Maintenance { has_dead_workers, next_expiry_in, has_unannounced } = found;
        if has_unannounced {
            engine.wakeups.wake_claimer(true);
        }
        if let Some(pause) = next_expiry_in {
            // the margin allows for errors of the estimate, and gives each worker a different moment
            let margin = Duration::from_millis(20 + fastrand::u64(..80));
            engine.wakeups.request_renewal(Instant::now() + pause + margin);
        }
        if has_dead_workers {
            take_over(engine).await;
        }
    }
}

async fn take_over(engine: &EngineInner) {
    match engine.store.take_over(engine.registration().worker).await {
        Ok(0) => {}
        Ok(recovered) => {
            crate::crash_point!("takeover finished");
            tracing::info!(recovered, "took over dead workers; their executions can be claimed");
            engine.wakeups.wake_claimer(true);
        }
        Err(error) => {
            report_error(engine, error, "takeover failed; the next maintenance repeats it");
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
    // the next heartbeat reports when recovered executions in quarantine may be tried
    engine.wakeups.request_heartbeat();
}

/// Stops the engine after a fatal error, and logs any other error.
fn report_error(engine: &EngineInner, error: StoreError, message: &str) {
    if let Some(error) = engine.stop_if_fatal(error) {
        tracing::debug!(%error, "{message}");
    }
}
