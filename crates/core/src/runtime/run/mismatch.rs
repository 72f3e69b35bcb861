//! Descriptions of how code disagrees with the record.

use std::fmt::Write;

use crate::failure::{Failure, NON_DETERMINISTIC};
use crate::path::Path;
use crate::runtime::messaging::shown::shown_name;
use crate::runtime::run::call::CallState;
use crate::runtime::run::replay::{CallKind, describe};
use crate::store::Checkpoint;

/// Maximum number of awaited calls that a description lists.
const MAX_NAMED_CALLS: usize = 3;

/// Returns the failure of an execution that is parked because its code does not repeat its record.
pub(crate) fn non_determinism_failure(disagreement: &str) -> Failure {
    Failure::with_kind(
        NON_DETERMINISTIC,
        format!(
            "the code does not repeat what was recorded: {disagreement}. Restore the code that started this \
             execution (or its order of steps) and resume the execution, or cancel it"
        ),
    )
    .permanent()
}

/// Describes code that waits for other calls, but does not make or await the call whose delivery is next.
pub(crate) fn describe_missing_call<'c>(
    next: &Checkpoint,
    awaited: impl Iterator<Item = &'c CallState>,
) -> String {
    let mut text = if next.path.is_of_task() {
        describe_missing_task(next) + ", or depends on a task that is not recorded"
    } else {
        format!(
            "the record continues with {} {:?} at position {}, but the code does not call it",
            describe(next.kind),
            shown_name(&next.name),
            next.path
        )
    };
    for (n, call) in awaited.enumerate() {
        if n == MAX_NAMED_CALLS {
            text.push_str(", and for more calls");
            break;
        }
        text.push_str(if n == 0 { "; the code waits for " } else { ", for " });
        let _ = write!(text, "{} {:?}", call.kind.noun(), shown_name(&call.name));
        if !call.path.is_of_task() {
            let _ = write!(text, " at position {}", call.path);
        }
    }
    text
}

/// Describes code that makes another call at the position of a pending sleep.
pub(crate) fn describe_replaced_sleep(kind: CallKind, name: &str, path: &Path) -> String {
    let shown = shown_name(name);
    format!("at position {path} a sleep is pending, but the code calls {} {shown:?}", kind.noun())
}

/// Describes a graph without a task whose outcome is recorded.
fn describe_missing_task(next: &Checkpoint) -> String {
    format!("task {:?} is recorded, but is not in the graph", &*next.name)
}

/// Describes code that returns while the record continues.
pub(crate) fn describe_early_return(next: &Checkpoint) -> String {
    if next.path.is_of_task() {
        return describe_missing_task(next);
    }
    format!(
        "the record continues with {} {:?} at position {}, but the code returns before it",
        describe(next.kind),
        &*next.name,
        next.path
    )
}

/// Describes code that waits for a call which is recorded as abandoned.
pub(crate) fn describe_missing_abandonment(next: &Checkpoint, time_limit: &str) -> String {
    format!(
        "the call {:?} at position {} is recorded as abandoned, but the code waits for it (replays repeat only the \
         time limits of {time_limit})",
        &*next.name, next.path
    )
}

/// Describes code that abandons a call against the record: the call's outcome is recorded, or the recorded
/// run had not abandoned the call by then.
pub(crate) fn describe_unrecorded_abandonment(
    kind: CallKind,
    name: &str,
    path: &Path,
    is_recorded: bool,
    time_limit: &str,
) -> String {
    let what = if is_recorded {
        "whose outcome is recorded"
    } else {
        "which the recorded run had not abandoned by then"
    };
    let shown = shown_name(name);
    format!(
        "the code abandons {} {shown:?} at position {path}, {what} (replays repeat only the time limits of \
         {time_limit})",
        kind.noun()
    )
}
