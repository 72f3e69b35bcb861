//! [`Context`]: one branch of an execution, as workflow code holds it.

use std::sync::Arc;

use crate::path::Path;
use crate::runtime::run::Run;

/// A branch of an execution, through which workflow code makes its durable calls.
///
/// Calls take `&mut self`, so a branch makes one call at a time. [`join`](Context::join), [`map`](Context::map),
/// [`race`](Context::race) and [`spawn`](Context::spawn) give each branch a context of its own.
///
/// A replay repeats the code between durable calls, so this code must depend only on the input and on the outcomes of
/// its calls. Clocks, random numbers and the outside world belong in steps.
pub struct Context {
    pub(crate) run: Arc<Run>,
    /// The branch's path.
    pub(crate) path: Path,
    /// The number of the branch's next call.
    next_call: u32,
}

impl Context {
    pub(crate) fn root(run: Arc<Run>) -> Self {
        let path = Path::of_part(run.state().calls.part()).unwrap_or_default();
        Self { run, path, next_call: 1 }
    }

    /// Returns a context for branch number `n` below `path`.
    pub(crate) fn for_branch(&self, path: &Path, n: u32) -> Self {
        Self { run: self.run.clone(), path: path.child(n), next_call: 1 }
    }

    /// Returns the path of the next call without taking it.
    pub(crate) fn upcoming_path(&self) -> Path {
        self.path.child(self.next_call)
    }

    /// Takes the path of the next call.
    pub(crate) fn next_path(&mut self) -> Path {
        let path = self.path.child(self.next_call);
        self.next_call += 1;
        path
    }

    /// Returns the text of the execution's key. The text is also the workflow_id, unless the caller gave one.
    pub fn execution_key(&self) -> String {
        self.run.key.to_string()
    }
}
