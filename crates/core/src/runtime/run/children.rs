//! The children that a run waits for, when it ends without them.

use std::sync::Arc;

use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::run::{ChildState, Interrupt, Run};
use crate::store::{Execution, Filter, Request, RequestKind, Status, Write};

/// Returns the children that a run waits for and that are not known to have ended.
pub(super) fn unended_children(run: &Run) -> Vec<Key> {
    let children = std::mem::take(&mut run.state().children);
    let children = children.into_iter().filter(|(_, child)| !matches!(child, ChildState::Ended(_)));
    children.map(|(key, _)| key).collect()
}

/// Stages a cancel of each of a run's children.
pub(super) fn cancel_children(run: &Run, children: Vec<Key>, failure: &Failure) {
    let reason = Payload::from_failure(failure);
    for execution in children {
        let (n, at, kind) = (Key::mint(0), run.core.now(), RequestKind::Cancel);
        let request = Request { execution, id: n, kind, at, reason: reason.clone() };
        run.stage_in(&mut run.state(), Write::Request(request), 0);
        crate::crash_point!("child cancel staged");
        if let Some(child) = run.core.runs.get(execution) {
            child.interrupt(Interrupt::Cancel(failure.clone().into()));
        }
    }
}

/// Children that the execution waits for and that have not ended: those that are `known`, and those that
/// runs before this one have started. `Unavailable` if the engine ends before the database answers.
pub(super) async fn awaited_children(run: Arc<Run>, mut known: Vec<Key>) -> Result<Vec<Key>, Error> {
    let statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
    let mut filter = Filter { parent: Some(run.key), statuses, limit: 1_000, ..Filter::default() };
    let store = &run.core.store;
    loop {
        let page = run.core.ask(|| async { Ok(store.list(&filter).await?) }).await?;
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
