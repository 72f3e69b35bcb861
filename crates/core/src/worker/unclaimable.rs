//! Reports, in the log, executions that no live worker can run, so that none waits unnoticed.

use std::time::Duration;

use crate::runtime::inner::EngineInner;
use crate::store::UnclaimableWork;

/// The pauses before the first check and before each further one.
const CHECK_PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// Number of live workers from which on each of them checks less often, so that about as many check per minute.
const CHECKS_PER_MINUTE: usize = 8;
/// The longest pause between two checks, with many live workers.
const MAX_CHECK_PAUSE: Duration = Duration::from_mins(10);
/// Maximum number of waiting executions that a check counts of each route.
const MAX_COUNTED_EXECUTIONS: u64 = 100;

/// Searches periodically for executions that no live worker can run. Logs each of their workflows and versions that the
/// previous search did not find. Never returns.
pub(crate) async fn report_unclaimable(engine: &EngineInner) {
    let mut reported: Vec<UnclaimableWork> = Vec::new();
    let mut pause = CHECK_PAUSES.0;
    loop {
        tokio::time::sleep(pause).await;
        pause = CHECK_PAUSES.1;
        let unclaimable = match engine.store.workers(MAX_COUNTED_EXECUTIONS, false).await {
            Ok(overview) => {
                pause = next_pause(
                    overview.workers.iter().filter(|it| it.is_alive && !it.info.is_client).count(),
                );
                overview.unclaimable()
            }
            Err(error) => {
                tracing::debug!(%error, "cannot check for unclaimable executions");
                continue;
            }
        };
        let is_reported = |it: &UnclaimableWork| {
            reported.iter().any(|other| other.workflow == it.workflow && other.app_version == it.app_version)
        };
        for it in unclaimable.iter().filter(|it| !is_reported(it)) {
            let workflow = &*it.workflow;
            let at_least = if it.executions < MAX_COUNTED_EXECUTIONS { "" } else { "at least " };
            let executions = format!("{at_least}{}", it.executions);
            match &it.app_version {
                Some(app_version) if it.is_version_missing => tracing::warn!(
                    workflow,
                    %app_version,
                    executions,
                    "no live worker runs this version of the code: start a worker of this version, or one \
                     without app_version"
                ),
                app_version => tracing::warn!(
                    workflow,
                    app_version = app_version.as_deref(),
                    executions,
                    "no live worker has registered this workflow: start a worker with its code"
                ),
            }
        }
        reported = unclaimable;
    }
}

/// Returns the pause until the next check of one of this many live workers. An overview contains all workers, so checks of
/// many workers at a fixed interval would cost the square of their number.
fn next_pause(live_workers: usize) -> Duration {
    if live_workers <= CHECKS_PER_MINUTE {
        return CHECK_PAUSES.1;
    }
    let pause = CHECK_PAUSES.1.mul_f64(live_workers as f64 / CHECKS_PER_MINUTE as f64).min(MAX_CHECK_PAUSE);
    // workers that began together check one after the other
    pause.mul_f64(0.5 + fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_workers_check_seldom() {
        for live_workers in [0, 1, 8] {
            assert_eq!(next_pause(live_workers), Duration::from_mins(1));
        }
        let checks_per_minute = |live_workers: usize| {
            let pauses: Duration = (0..live_workers).map(|_| next_pause(live_workers)).sum();
            live_workers as f64 * 60.0 / (pauses / live_workers as u32).as_secs_f64()
        };
        for live_workers in [16, 80] {
            let checks = checks_per_minute(live_workers);
            assert!((6.0..=12.0).contains(&checks), "{checks} checks of {live_workers} workers");
        }
        // each worker reports what it finds in its own log, at least every quarter of an hour
        let checks = checks_per_minute(1_000);
        assert!((90.0..=110.0).contains(&checks), "{checks} checks");
        assert!((0..1_000).all(|_| next_pause(100_000) <= MAX_CHECK_PAUSE.mul_f64(1.5)));
    }
}
