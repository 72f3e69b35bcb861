//! Reports, in the log, executions that no live worker can run, so that none waits unnoticed.

use std::time::Duration;

use crate::runtime::inner::EngineInner;
use crate::store::UnclaimableWork;

/// The pauses before the first check and before each further one.
const CHECK_PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// Maximum number of waiting executions that a check counts.
const MAX_COUNTED_EXECUTIONS: u64 = 10_000;

/// Searches periodically for executions that no live worker can run. Logs each of their workflows and versions that the
/// previous search did not find. Never returns.
pub(crate) async fn report_unclaimable(engine: &EngineInner) {
    let mut reported: Vec<UnclaimableWork> = Vec::new();
    let mut pause = CHECK_PAUSES.0;
    loop {
        tokio::time::sleep(pause).await;
        pause = CHECK_PAUSES.1;
        let unclaimable = match engine.store.workers(MAX_COUNTED_EXECUTIONS).await {
            Ok(overview) => overview.unclaimable(),
            Err(error) => {
                tracing::debug!(%error, "cannot check for unclaimable executions");
                continue;
            }
        };
        let is_reported = |it: &UnclaimableWork| {
            reported.iter().any(|other| other.workflow == it.workflow && other.app_version == it.app_version)
        };
        for it in unclaimable.iter().filter(|it| !is_reported(it)) {
            let (workflow, executions) = (&*it.workflow, it.executions);
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
