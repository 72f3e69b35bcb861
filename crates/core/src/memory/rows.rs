//! The rows that a Write changes, to check that a flush is a set of row changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::key::Key;
use crate::path::Path;
use crate::store::Write;

/// A row that a Write changes. Rows of `ready`, `timers` and `waits` belong to the row of their execution.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChangedRow {
    Execution(Key),
    WorkflowId(Arc<str>),
    Checkpoint(Key, Path),
    Attempt(Key, Path, u32),
    Chunk(Key, u64, u32),
    Request(Key, Key),
    Requests(Key),
    Pack(Key, u32),
    MessageId(Key, Arc<str>),
    StreamEntry(Key, Arc<str>, i64),
}

/// Returns a row that two Writes of a flush change; `None` if all rows differ.
pub(super) fn find_row_changed_twice(writes: &[Write]) -> Option<impl fmt::Debug + PartialEq + use<>> {
    let mut seen = BTreeSet::new();
    let mut deletions = BTreeMap::new();
    for write in writes {
        for row in changed_rows(write) {
            if !seen.insert(row.clone()) {
                return Some(row);
            }
        }
        if let Write::DeleteChunks(deletion) = write
            && deletions.insert(deletion.execution, &deletion.keep).is_some()
        {
            return Some(ChangedRow::Chunk(deletion.execution, 0, 0));
        }
    }
    seen.iter()
        .find(|row| match row {
            ChangedRow::Chunk(key, value, _) => deletions.get(key).is_some_and(|keep| !keep.contains(value)),
            ChangedRow::Request(key, _) => seen.contains(&ChangedRow::Requests(*key)),
            _ => false,
        })
        .cloned()
}

/// Returns the rows that a Write changes, except the chunks that a DeleteChunks deletes.
fn changed_rows(write: &Write) -> Vec<ChangedRow> {
    match write {
        Write::Start(start) => std::iter::once(ChangedRow::Execution(start.key))
            .chain(start.workflow_id.clone().map(ChangedRow::WorkflowId))
            .collect(),
        Write::Checkpoint(it) => {
            let appended = it.entry().map(|entry| {
                let stream = it.name.to_string().into();
                ChangedRow::StreamEntry(it.execution, stream, entry.offset)
            });
            std::iter::once(ChangedRow::Checkpoint(it.execution, it.path.clone())).chain(appended).collect()
        }
        Write::Attempt(it) => vec![ChangedRow::Attempt(it.execution, it.path.clone(), it.attempt)],
        Write::Transition(it) => vec![ChangedRow::Execution(it.key)],
        Write::Wake(key) => vec![ChangedRow::Execution(*key)],
        Write::Request(request) => {
            vec![ChangedRow::Execution(request.execution), ChangedRow::Request(request.execution, request.id)]
        }
        Write::ClearRequests(key) => vec![ChangedRow::Requests(*key)],
        Write::Chunk(chunk) => vec![ChangedRow::Chunk(chunk.execution, chunk.value, chunk.index)],
        Write::DeleteChunks(_) | Write::Forward(_) => Vec::new(),
        Write::Pack(pack) => vec![ChangedRow::Pack(pack.bundle, pack.number())],
        Write::CloseBatch(close) => vec![ChangedRow::Execution(close.batch)],
        Write::Append(it) => vec![ChangedRow::StreamEntry(it.execution, it.stream.clone(), it.entry.offset)],
        Write::Send(it) => {
            it.recorded_ids().map(|(key, id)| ChangedRow::MessageId(key, id.clone())).collect()
        }
    }
}
