//! The tree of a graph's execution: the states of its tasks.

use std::sync::Arc;

use stepfast::graph::{
    GraphDeclaration, GraphShape, RecordedCall, RecordedOutcome, ValueCondition, ValueSource,
};
use stepfast::store::CheckpointKind;
use stepfast::{Error, Path, Payload, Status, Store};

use crate::output::{ShowData, cell_text, full_failure};

/// Maximum number of characters of an error in a tree.
const MAX_ERROR_CHARS: usize = 200;

/// Loads the graph of an execution's workflow. Returns `None` if the workflow is no graph, or if this version cannot read
/// the graph.
pub(crate) async fn graph_of(
    store: &Arc<dyn Store>,
    workflow: &Arc<str>,
) -> Result<Option<GraphShape>, Error> {
    let rows = store.graphs(Some(std::slice::from_ref(workflow))).await?;
    let shape = |row| GraphDeclaration::from_row(row).and_then(|it| it.shape(workflow));
    Ok(rows.first().and_then(|row| shape(row).ok()))
}

/// Returns the tree of an execution of the graph.
pub(crate) fn execution_tree(shape: &GraphShape, shown: &ShowData) -> String {
    let record = &shown.record;
    let attempts = record.attempts.iter().map(|attempt| RecordedCall {
        path: numbers(&attempt.path),
        name: String::new(),
        outcome: RecordedOutcome::FailedAttempt,
        duration_ms: 0,
    });
    let calls = record.checkpoints.iter().map(|checkpoint| {
        let child = shown.child(checkpoint).and_then(|(_, child)| child);
        let outcome = match (checkpoint.kind, child) {
            (CheckpointKind::Failed, _) => {
                RecordedOutcome::Failed(short_error(&full_failure(&checkpoint.outcome)))
            }
            (_, Some(child)) if matches!(child.status, Status::Failed | Status::Cancelled) => {
                RecordedOutcome::Failed(short_error(&full_failure(&child.outcome)))
            }
            _ => RecordedOutcome::Succeeded,
        };
        RecordedCall {
            path: numbers(&checkpoint.path),
            name: checkpoint.name.to_string(),
            outcome,
            duration_ms: checkpoint.duration_ms,
        }
    });
    let value_holds = |_: &str, condition: &ValueCondition| {
        // only the program of the graph can merge its context
        let ValueSource::Task(task) = &condition.source else { return None };
        let path = shape.path_of(task);
        let checkpoint =
            record.checkpoints.iter().rfind(|checkpoint| Some(&checkpoint.path) == path.as_ref());
        Some(checkpoint.is_some_and(|checkpoint| condition.holds(&task_value(&checkpoint.outcome))))
    };
    shape.to_execution_tree(record.execution.status, attempts.chain(calls), value_holds)
}

/// Returns the value of a task, without the changes of the context that a Python task records with its value.
fn task_value(outcome: &Payload) -> Payload {
    let inner = outcome.to_value().and_then(|value| {
        let entries = value.as_map()?;
        let inner =
            |name: &str| entries.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value);
        let has_context = entries.len() == 3 && inner("set").is_some() && inner("removed").is_some();
        Payload::encode(inner("value").filter(|_| has_context)?).ok()
    });
    inner.unwrap_or_else(|| outcome.clone())
}

fn numbers(path: &Path) -> Vec<u32> {
    path.numbers().unwrap_or_default()
}

/// Returns the first line of an error, cut short if it is long.
fn short_error(error: &str) -> String {
    let line = cell_text(error.lines().next().unwrap_or_default());
    if line.chars().count() <= MAX_ERROR_CHARS {
        return line;
    }
    line.chars().take(MAX_ERROR_CHARS).chain(['…']).collect()
}
