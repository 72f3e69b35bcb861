//! The record of an execution, with all that is shown beside it.

use std::sync::Arc;

use stepfast::store::Execution;
use stepfast::store::{Detail, ExecutionId, WaitingWork};
use stepfast::{Error, Payload, Status, Store, find_pending_topics, find_record};

use crate::output::{self, ShowData};
use crate::unclaimable;
use crate::workflow::dead_owners;

/// Loads an execution with its values, its children and the state of its worker.
pub(crate) async fn load_shown(store: &Arc<dyn Store>, workflow_id: &str) -> Result<ShowData, Error> {
    let mut record = find_record(&**store, workflow_id, Detail::Full).await?;
    // values that are stored in chunks are loaded, so that they are shown too
    let key = record.execution.key;
    let fetch = async |payload: &mut Payload| -> Result<(), Error> {
        if let Some(chunks) = payload.chunk_ref() {
            *payload = Payload::from_bytes(store.load_value(key, chunks).await?);
        }
        Ok(())
    };
    fetch(&mut record.execution.input).await?;
    fetch(&mut record.execution.outcome).await?;
    for checkpoint in &mut record.checkpoints {
        fetch(&mut checkpoint.outcome).await?;
    }
    let children: Vec<ExecutionId> =
        record.checkpoints.iter().filter_map(output::child_key).map(ExecutionId::Key).collect();
    let children =
        if children.is_empty() { Vec::new() } else { store.load(&children, Detail::Outcome).await? };
    let children = children.into_iter().flatten().map(|it| (it.execution.key, it.execution)).collect();
    let dead_workers = dead_owners(store, std::slice::from_ref(&record.execution)).await?;
    let unclaimable = explain_unclaimable(store, &record.execution).await?;
    let pending = find_pending_topics(&**store, key).await?;
    Ok(ShowData { record, children, dead_workers, unclaimable, pending })
}

/// Explains why no live worker can run an execution that waits for a worker; `None` if a live worker can.
async fn explain_unclaimable(store: &Arc<dyn Store>, execution: &Execution) -> Result<Option<String>, Error> {
    if execution.status != Status::Queued {
        return Ok(None);
    }
    // with a limit of 0, the store returns the workers alone, and counts no other waiting executions
    let overview = store.workers(0, false).await?;
    let (workflow, app_version) = (execution.workflow.clone(), execution.app_version.clone());
    let waiting = WaitingWork { workflow, app_version, executions: 1 };
    Ok(overview.check_unclaimable(&waiting).map(|it| unclaimable::unclaimable_reason(&it)))
}
