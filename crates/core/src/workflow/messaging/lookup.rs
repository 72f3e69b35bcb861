//! The search for the other execution of a call: the receiver of a message, or the one that sets an event.

use std::sync::Arc;

use crate::error::Error;
use crate::key::Key;
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::item_lookup::key_of_text;

/// Returns the result of a query for the execution with this workflow_id, also if there is none. The execution may be this
/// one, an ancestor or a child, and not durable yet: then the query is sent again when it is durable. Parks the execution
/// after another error.
pub(super) async fn find_other<T, F>(
    call: &Call,
    workflow_id: &str,
    query: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    search_when_durable(&call.run, workflow_id, || search(call, &query)).await
}

/// Returns the key of the execution with this workflow_id, to which a step of this run sends a message. The future never
/// resolves if the engine is ending.
pub(super) async fn find(run: &Arc<Run>, workflow_id: &str) -> Result<Key, Error> {
    let engine = &run.engine;
    let search = || engine.query_with_retry(|| engine.find_receiver(workflow_id));
    match search_when_durable(run, workflow_id, search).await {
        Err(Error::Unavailable(_)) => std::future::pending().await,
        found => found,
    }
}

/// Returns the result of a search. If it finds nothing, searches again when the relatives of the run are durable.
async fn search_when_durable<T, F>(
    run: &Arc<Run>,
    workflow_id: &str,
    search: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    match search().await {
        Err(Error::NotFound { .. }) => {
            wait_relatives_durable(run, workflow_id).await;
            search().await
        }
        found => found,
    }
}

/// Waits until the Starts of this execution, of its ancestors, and of the child with this key are durable. No other caller can
/// name an execution that is not durable.
async fn wait_relatives_durable(run: &Arc<Run>, workflow_id: &str) {
    let runs = &run.engine.runs;
    let mut relatives = vec![run.clone()];
    while let Some(parent) = relatives.last().and_then(|last| runs.get(last.parent.as_ref()?.key)) {
        relatives.push(parent);
    }
    relatives.extend(key_of_text(workflow_id).and_then(|key| runs.get(key)));
    for relative in relatives {
        relative.stage_row();
        if let Some(lsn) = relative.barrier(false) {
            relative.lane().wait_durable(lsn).await;
        }
    }
}

/// Returns the result of a query, also if no execution or no such item exists. Parks the execution after another error.
pub(super) async fn search<T, F>(call: &Call, query: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let search = || async {
        match query().await {
            Err(error @ (Error::NotFound { .. } | Error::Invalid { .. })) => Ok(Err(error)),
            result => result.map(Ok),
        }
    };
    match call.run.engine.query_with_retry(search).await {
        Ok(found) => found,
        // the engine is ending, and requeues the execution
        Err(Error::Unavailable(_)) => std::future::pending().await,
        Err(error) => call.park(error.to_string()).await,
    }
}
