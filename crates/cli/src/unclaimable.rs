//! Why executions wait for a worker that is not there.

use stepfast::store::Unclaimable;

/// Why nobody can run that, and what to do.
pub(crate) fn why(it: &Unclaimable) -> String {
    let Unclaimable { workflow, .. } = it;
    match &it.app_version {
        Some(version) if it.is_version_missing => format!(
            "no live worker that has registered {workflow:?} runs version {version:?}: start one, or one without \
             app_version"
        ),
        Some(version) => format!(
            "no live worker has registered {workflow:?}: start one that has, of version {version:?} or without \
             app_version"
        ),
        None => format!("no live worker has registered {workflow:?}: start one that has"),
    }
}
