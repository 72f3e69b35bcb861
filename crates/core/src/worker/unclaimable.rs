//! Reports, in the log, executions that no live worker can run, so that none waits unnoticed.

use std::time::Duration;

use crate::runtime::inner::Core;
use crate::store::UnclaimableWork;

/// The pauses before the first check and before each further one.
const LOOK_AFTER: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// Maximum number of waiting executions that a check counts.
const MOST: u64 = 10_000;

/// Checks periodically, and logs every workflow and version that was not in the previous report. Never returns.
pub(crate) async fn report_unclaimable(core: &Core) {
    let mut told: Vec<UnclaimableWork> = Vec::new();
    let mut pause = LOOK_AFTER.0;
    loop {
        tokio::time::sleep(pause).await;
        pause = LOOK_AFTER.1;
        let unclaimable = match core.store.workers(MOST).await {
            Ok(survey) => survey.unclaimable(),
            Err(error) => {
                tracing::debug!(%error, "cannot check for unclaimable executions");
                continue;
            }
        };
        let is_told = |it: &UnclaimableWork| {
            told.iter().any(|other| other.workflow == it.workflow && other.app_version == it.app_version)
        };
        for it in unclaimable.iter().filter(|it| !is_told(it)) {
            let (workflow, executions) = (&*it.workflow, it.executions);
            match &it.app_version {
                Some(app_version) if it.is_version_missing => tracing::warn!(
                    workflow,
                    %app_version,
                    executions,
                    "no live worker runs this version of the code: start one that does, or one without app_version"
                ),
                app_version => tracing::warn!(
                    workflow,
                    app_version = app_version.as_deref(),
                    executions,
                    "no live worker has registered this workflow: start one that has"
                ),
            }
        }
        told = unclaimable;
    }
}
