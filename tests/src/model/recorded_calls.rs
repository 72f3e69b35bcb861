//! [`RecordedCalls`]: the calls that a random history has recorded.

use std::collections::{BTreeMap, BTreeSet};

use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::store::Checkpoint;

use crate::fixtures::builders::{checkpoint, continuation, part_path, step_path};

/// The calls that were recorded, which must not be recorded twice, and the present parts of executions.
#[derive(Clone, Default)]
pub(super) struct RecordedCalls {
    calls: BTreeSet<(Key, u32, u32, u32)>,
    parts: BTreeMap<Key, u32>,
}

impl RecordedCalls {
    /// Records an attempt of a call, or with number 0 its outcome. Returns the path of the call in the present part of the
    /// execution; `None` if this was recorded before.
    pub(super) fn record(&mut self, execution: Key, n: u32, attempt: u32) -> Option<Path> {
        let part = self.parts.get(&execution).copied().unwrap_or_default();
        let path = if part == 0 { step_path(n) } else { part_path(part).child(n) };
        self.calls.insert((execution, part, n, attempt)).then_some(path)
    }

    /// Records the outcome of a call. Its order is `count`, which is not the order of paths.
    pub(super) fn checkpoint(
        &mut self,
        execution: Key,
        n: u32,
        count: i64,
        value: &str,
    ) -> Option<Checkpoint> {
        let path = self.record(execution, n, 0)?;
        Some(Checkpoint { path, order: count as u32, ..checkpoint(execution, n, value) })
    }

    /// Records that the execution continues as new.
    pub(super) fn continue_as_new(&mut self, execution: Key, count: i64) -> Checkpoint {
        let part = self.parts.entry(execution).or_default();
        *part += 1;
        continuation(execution, *part, count as u32)
    }
}
