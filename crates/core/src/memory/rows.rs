//! The rows that a Write changes: a flush is a set of row changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::key::Key;
use crate::path::Path;
use crate::store::Write;

/// A row that a Write changes. Those of `ready`, `timers` and `waits` go with their execution's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Execution(Key),
    WorkflowId(Arc<str>),
    Checkpoint(Key, Path),
    Attempt(Key, Path, u32),
    Chunk(Key, u64, u32),
    Request(Key, Key),
    Requests(Key),
}

/// A row that two Writes of a flush change, if there is one.
pub(super) fn changed_twice(writes: &[Write]) -> Option<impl fmt::Debug + PartialEq + use<>> {
    let mut seen = BTreeSet::new();
    let mut discards = BTreeMap::new();
    for write in writes {
        for row in rows(write) {
            if !seen.insert(row.clone()) {
                return Some(row);
            }
        }
        if let Write::DeleteChunks(discard) = write
            && discards.insert(discard.execution, &discard.keep).is_some()
        {
            return Some(Row::Chunk(discard.execution, 0, 0));
        }
    }
    seen.iter()
        .find(|row| match row {
            Row::Chunk(key, value, _) => discards.get(key).is_some_and(|keep| !keep.contains(value)),
            Row::Request(key, _) => seen.contains(&Row::Requests(*key)),
            _ => false,
        })
        .cloned()
}

fn rows(write: &Write) -> Vec<Row> {
    match write {
        Write::Start(start) => std::iter::once(Row::Execution(start.key))
            .chain(start.workflow_id.clone().map(Row::WorkflowId))
            .collect(),
        Write::Checkpoint(it) => vec![Row::Checkpoint(it.execution, it.path.clone())],
        Write::Attempt(it) => vec![Row::Attempt(it.execution, it.path.clone(), it.attempt)],
        Write::Transition(change) => vec![Row::Execution(change.key)],
        Write::Wake(key) => vec![Row::Execution(*key)],
        Write::Request(request) => {
            vec![Row::Execution(request.execution), Row::Request(request.execution, request.id)]
        }
        Write::ClearRequests(key) => vec![Row::Requests(*key)],
        Write::Chunk(chunk) => vec![Row::Chunk(chunk.execution, chunk.value, chunk.index)],
        Write::DeleteChunks(_) => Vec::new(),
    }
}
