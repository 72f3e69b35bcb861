//! The worker's loop that takes over dead workers.

use std::time::Duration;

use crate::runtime::inner::EngineInner;

/// The pause after a failed claim or takeover.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Takes over dead workers whenever a heartbeat has found any. Never returns.
pub(super) async fn run_takeovers(engine: &EngineInner) {
    loop {
        engine.wakeups.takeover.notified().await;
        match engine.store.take_over(engine.registration().worker).await {
            Ok(0) => {}
            Ok(recovered) => {
                crate::crash_point!("takeover finished");
                tracing::info!(recovered, "took over dead workers; their executions can be claimed");
                engine.wakeups.wake_claimer(true);
            }
            Err(error) => {
                if let Some(error) = engine.stop_if_fatal(error) {
                    tracing::debug!(%error, "takeover failed; the next heartbeat repeats it");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
        // the next heartbeat reports when recovered executions in quarantine may be tried
        engine.wakeups.request_heartbeat();
    }
}
