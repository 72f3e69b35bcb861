//! [`Context`]: what workflow code holds; one branch of an execution.

use std::sync::Arc;
use std::time::Duration;

use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::store::CheckpointKind;

/// A branch of an execution: what its durable calls go through.
///
/// Calls take `&mut self`, so a branch makes one at a time; [`join`](Context::join), [`map`](Context::map),
/// [`race`](Context::race) and [`spawn`](Context::spawn) give each branch a context of its own.
///
/// Code between durable calls is repeated in a replay: it must depend on nothing but its input and the
/// outcomes of its calls. Clocks, random numbers and the outside world belong into steps.
pub struct Context {
    pub(crate) run: Arc<Run>,
    /// Path of the branch.
    pub(crate) path: Path,
    /// Number of the next call in the branch.
    next: u32,
}

impl Context {
    pub(crate) fn root(run: Arc<Run>) -> Self {
        Self { run, path: Path::root(), next: 1 }
    }

    /// A context for branch `n` below `path`.
    pub(crate) fn branch(&self, path: &Path, n: u32) -> Self {
        Self { run: self.run.clone(), path: path.child(n), next: 1 }
    }

    /// The path that the next call will have.
    pub(crate) fn coming_path(&self) -> Path {
        self.path.child(self.next)
    }

    /// The path of the next call.
    pub(crate) fn next_path(&mut self) -> Path {
        let path = self.path.child(self.next);
        self.next += 1;
        path
    }

    /// The execution's key, as text; its workflow_id unless the caller gave one.
    pub fn execution(&self) -> String {
        self.run.key.to_string()
    }

    /// Waits, durably, for `duration`. Never shorter, judged by the database's clock; after a crash the
    /// time that has passed counts. While all branches wait long, the execution takes no memory.
    pub async fn sleep(&mut self, duration: Duration) {
        let call = self.begin_sleep();
        sleep_for(&call, duration).await;
    }

    pub(crate) fn begin_sleep(&mut self) -> Call {
        let path = self.next_path();
        Call::begin(&self.run, path, &"sleep".into(), CallKind::Sleep, None)
    }
}

/// Sleeps, as the call that has begun.
pub(crate) async fn sleep_for(call: &Call, duration: Duration) {
    if call.recorded().await.is_some() {
        return;
    }
    let run = &call.run;
    let path = call.path.clone();
    let armed = { run.state().armed.iter().find(|armed| armed.path == path).map(|armed| armed.due_at) };
    if let Some(due_at) = armed {
        // so that what is recorded says how long it slept, also after a suspension
        run.began_at(call.id(), due_at.minus(duration));
    }
    let due_at = armed.unwrap_or_else(|| run.core.now().plus(duration));
    call.until(due_at).await;
    call.deliver(CheckpointKind::Timer, Payload::empty(), 0).await;
}
