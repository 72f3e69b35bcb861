//! The awaited children of a run that ends before them.

use std::sync::Arc;

use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::run::{ChildState, Interrupt, Run};
use crate::store::{Execution, Filter, Request, RequestKind, Status, Write};

/// Takes the awaited children that are not known to have ended.
pub(super) fn take_unended_children(run: &Run) -> Vec<Key> {
    let children = std::mem::take(&mut run.state().children);
    let children = children.into_iter().filter(|(_, child)| !matches!(child, ChildState::Ended(_)));
    children.map(|(key, _)| key).collect()
}

/// Stages a request to cancel each of `children`, and interrupts those that run here.
pub(crate) fn cancel_children(run: &Run, children: Vec<Key>, failure: &Failure) {
    let reason = Payload::from_failure(failure);
    for execution in children {
        let (id, at, kind) = (Key::mint(0), run.engine.now(), RequestKind::Cancel);
        let request = Request { execution, id, kind, at, reason: reason.clone() };
        run.stage_locked(&mut run.state(), Write::Request(request), 0);
        crate::crash_point!("child cancel staged");
        if let Some(child) = run.engine.runs.get(execution) {
            child.interrupt(Interrupt::Cancel(failure.clone().into()));
        }
    }
}

/// Returns the awaited children that have not ended: those in `known`, and those that earlier runs of the
/// execution started. Returns `Unavailable` if the engine ends before the database replies.
pub(super) async fn load_awaited_children(run: Arc<Run>, mut known: Vec<Key>) -> Result<Vec<Key>, Error> {
    let statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
    let mut filter = Filter { parent: Some(run.key), statuses, limit: 1_000, ..Filter::default() };
    let store = &run.engine.store;
    loop {
        let page = run.engine.query_with_retry(|| async { Ok(store.list(&filter).await?) }).await?;
        let awaited = |child: &Execution| child.parent.as_ref().is_some_and(|it| !it.is_detached);
        known.extend(page.executions.iter().filter(|child| awaited(child)).map(|child| child.key));
        if page.executions.len() < filter.limit {
            known.sort_unstable();
            known.dedup();
            return Ok(known);
        }
        filter.after = page.executions.last().map(|child| child.key);
    }
}
