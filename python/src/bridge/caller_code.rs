//! [`CallerCode`]: the code of an execution that its caller runs, in a task that is not ours.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PySet};
use stepfast::guest::Stopped;

use crate::bridge::branch::Branch;
use crate::bridge::call::Call;
use crate::convert::value::call_with;
use crate::lock::Mutex;

/// What the code is called with, beside what is recorded.
pub(crate) struct CallerCode {
    pub(crate) function: Py<PyAny>,
    /// What the package knows the engine by.
    pub(crate) home: Py<PyAny>,
}

/// What a loop knows of callers whose code runs, by run.
pub(crate) struct Callers {
    /// Their tasks; None where there is none.
    tasks: Mutex<HashMap<u64, Py<PyAny>, foldhash::fast::FixedState>>,
    /// What guards those, and which unwind.
    rare: PyOnceLock<(Py<PyDict>, Py<PySet>)>,
}

impl Callers {
    pub(crate) fn new() -> Self {
        Self { tasks: Mutex::default(), rare: PyOnceLock::new() }
    }

    /// Says where the package keeps what is rare.
    pub(crate) fn keep(&self, py: Python<'_>, guards: Py<PyDict>, unwound: Py<PySet>) {
        let _ = self.rare.set(py, (guards, unwound));
    }

    /// The task of the caller that runs the code of this run.
    pub(crate) fn task(&self, py: Python<'_>, run: u64) -> Option<Py<PyAny>> {
        self.tasks.object(py, |tasks| tasks.get(&run))
    }

    pub(crate) fn traverse(&self, visit: &pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        self.tasks.traverse(|tasks| tasks.values().try_for_each(|task| visit.call(task)))
    }

    fn begins(&self, run: u64, task: Py<PyAny>) {
        let before = self.tasks.with(|tasks| tasks.insert(run, task));
        drop(before);
    }

    /// True if some of them are guarded, or unwind.
    fn ends(&self, py: Python<'_>, run: u64) -> bool {
        let ended = self.tasks.with(|tasks| tasks.remove(&run));
        drop(ended);
        let is_rare = |(guards, unwound): &(Py<PyDict>, Py<PySet>)| {
            !guards.bind(py).is_empty() || !unwound.bind(py).is_empty()
        };
        self.rare.get(py).is_some_and(is_rare)
    }
}

/// The code of one execution, while it runs.
pub(crate) struct Entered {
    pub(crate) branch: Py<Branch>,
    /// The caller's task.
    pub(crate) caller: Py<PyAny>,
}

impl CallerCode {
    /// The first branch of the code that begins, and its arguments; `None` if those cannot be read.
    pub(crate) fn enter<'py>(
        &self,
        call: &Bound<'py, Call>,
        caller: Bound<'py, PyAny>,
    ) -> PyResult<Option<(Entered, Bound<'py, PyAny>)>> {
        let py = call.py();
        let Some((branch, input)) = Call::begun(call) else { return Ok(None) };
        let branch = Bound::new(py, branch.at_home(self.home.clone_ref(py)))?;
        if let Some(callers) = call.get().callers() {
            callers.begins(branch.get().run(), caller.clone().unbind());
        }
        Ok(Some((Entered { branch: branch.unbind(), caller: caller.unbind() }, input)))
    }

    /// Calls the function: a coroutine.
    pub(crate) fn called<'py>(&self, input: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        call_with(self.function.bind(input.py()), input)
    }
}

impl Entered {
    /// The code has ended. True if somebody has to look at how.
    pub(crate) fn leave(&self, call: &Call, py: Python<'_>) -> bool {
        let Some(callers) = call.callers() else { return false };
        // its own end has stopped it, too
        callers.ends(py, self.branch.get().run())
            || matches!(self.branch.get().gate().stopped(), Some(Stopped::Suspended | Stopped::Cancelled))
    }
}
