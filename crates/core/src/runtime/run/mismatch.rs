//! Disagreements of code and record, in words.

use std::fmt::Write;

use crate::failure::{Failure, NON_DETERMINISTIC};
use crate::path::Path;
use crate::runtime::run::call::CallState;
use crate::runtime::run::replay::{CallKind, described};
use crate::store::Checkpoint;

/// So many calls are named that the code waits for.
const MOST_NAMED: usize = 3;

/// Parks an execution whose code does not repeat its record.
pub(crate) fn non_deterministic(disagreement: &str) -> Failure {
    Failure::with_kind(
        NON_DETERMINISTIC,
        format!(
            "the code does not repeat what was recorded: {disagreement}. Restore the code that started this \
             execution (or its order of steps) and resume it, or cancel it"
        ),
    )
    .permanent()
}

/// The code waits for other calls, and does not make or await the one whose delivery comes next.
pub(crate) fn missing<'c>(next: &Checkpoint, others: impl Iterator<Item = &'c CallState>) -> String {
    let mut text = format!(
        "the record goes on with {} {:?} at position {}, the code now does not call it",
        described(next.kind),
        &*next.name,
        next.path
    );
    for (n, call) in others.enumerate() {
        if n == MOST_NAMED {
            text.push_str(", and for more");
            break;
        }
        text.push_str(if n == 0 { "; it waits for " } else { ", for " });
        let _ = write!(text, "{} {:?} at position {}", call.kind.word(), &*call.name, call.path);
    }
    text
}

/// The code makes another call where a sleep is under way.
pub(crate) fn sleep_under_way(kind: CallKind, name: &str, path: &Path) -> String {
    format!("at position {path} a sleep is under way, the code now calls {} {name:?}", kind.word())
}

/// The code returns while more is recorded.
pub(crate) fn ends_early(next: &Checkpoint) -> String {
    format!(
        "the record goes on with {} {:?} at position {}, the code now returns before it",
        described(next.kind),
        &*next.name,
        next.path
    )
}

/// The code waits for a call that was given up when it was recorded.
pub(crate) fn not_given_up(next: &Checkpoint, time_limit: &str) -> String {
    format!(
        "the call {:?} at position {} was given up when it was recorded, now the code goes on waiting for it \
         (a time limit that a replay repeats is {time_limit})",
        &*next.name, next.path
    )
}

/// The code gives a call up whose outcome is recorded, or while the record goes on.
pub(crate) fn given_up(
    kind: CallKind,
    name: &str,
    path: &Path,
    is_recorded: bool,
    time_limit: &str,
) -> String {
    let what = if is_recorded { "whose outcome is recorded" } else { "which was not given up by then" };
    format!(
        "the code now gives up {} {name:?} at position {path}, {what} (a time limit that a replay repeats is \
         {time_limit})",
        kind.word()
    )
}
