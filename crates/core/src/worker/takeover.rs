//! Taking over what dead workers have left.

use std::time::Duration;

use crate::runtime::inner::Core;

/// Pause after a claim that failed, or a takeover.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Takes over, whenever a look has seen lost workers.
pub(super) async fn take_over(core: &Core) {
    loop {
        core.worker.take_over.notified().await;
        match core.store.take_over(core.registration().worker).await {
            Ok(0) => {}
            Ok(recovered) => {
                crate::crash_point!("look recovered");
                tracing::info!(recovered, "executions of lost workers can be claimed again");
                core.wake_worker(true);
            }
            Err(error) => {
                if let Some(error) = core.end_by(error) {
                    tracing::debug!(%error, "taking over waits for the next look");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
        // what is in quarantine of it has a time
        core.want_look();
    }
}
