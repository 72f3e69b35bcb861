//! Explanations of executions that no live worker can run.

use stepfast::store::UnclaimableWork;

/// Explains why no live worker can run these executions, and what to do.
pub(crate) fn unclaimable_reason(it: &UnclaimableWork) -> String {
    let UnclaimableWork { workflow, .. } = it;
    match &it.app_version {
        Some(version) if it.is_version_missing => format!(
            "no live worker that has registered {workflow:?} runs version {version:?}: start a worker of that version, \
             or one without app_version"
        ),
        Some(version) => format!(
            "no live worker has registered {workflow:?}: start a worker with its code, of version {version:?} or without \
             app_version"
        ),
        None => format!("no live worker has registered {workflow:?}: start a worker with its code"),
    }
}
