//! [`Context`]: what workflow code holds; one branch of an execution.

use std::sync::Arc;

use crate::path::Path;
use crate::runtime::run::Run;

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
}
