//! Tells, in the log, of executions that no live worker can run: nothing is stranded in silence.

use std::time::Duration;

use crate::runtime::inner::Core;
use crate::store::Unclaimable;

/// When the first look comes, and how long after it each further one.
const LOOK_AFTER: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// Of a backlog so many are looked at.
const MOST: u64 = 10_000;

/// Looks now and then; tells what has changed. Never returns.
pub(crate) async fn tell(core: &Core) {
    let mut told: Vec<Unclaimable> = Vec::new();
    let mut pause = LOOK_AFTER.0;
    loop {
        tokio::time::sleep(pause).await;
        pause = LOOK_AFTER.1;
        let unclaimable = match core.store.workers(MOST).await {
            Ok(survey) => survey.unclaimable(),
            Err(error) => {
                tracing::debug!(%error, "cannot look what nobody can run");
                continue;
            }
        };
        let is_told = |it: &Unclaimable| {
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
