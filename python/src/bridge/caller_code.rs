//! [`CallerCode`]: the code of an execution that its caller runs, in a task of the program.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PySet};
use stepfast::guest::StopReason;

use crate::bridge::branch::Branch;
use crate::bridge::call::Call;
use crate::convert::value::call_with;
use crate::interpreter::new_context;
use crate::lock::Mutex;

/// The function of the workflow, and the host of its execution.
pub(crate) struct CallerCode {
    pub(crate) function: Py<PyAny>,
    /// The engine's object in the Python package.
    pub(crate) host: Py<PyAny>,
}

/// The callers on a loop that run the code of executions, by run id.
pub(crate) struct Callers {
    /// The tasks of the callers; Python's None for a caller without a task.
    tasks: Mutex<HashMap<u64, Py<PyAny>, foldhash::fast::FixedState>>,
    /// The guards of the callers' tasks, and the ids of runs that unwind. Both belong to the Python package and are
    /// usually empty.
    guards_and_unwinding: PyOnceLock<(Py<PyDict>, Py<PySet>)>,
}

impl Callers {
    pub(crate) fn new() -> Self {
        Self { tasks: Mutex::default(), guards_and_unwinding: PyOnceLock::new() }
    }

    /// Sets the package's collections of guards and of unwinding runs.
    pub(crate) fn set_guards(&self, py: Python<'_>, guards: Py<PyDict>, unwinding: Py<PySet>) {
        let _ = self.guards_and_unwinding.set(py, (guards, unwinding));
    }

    /// Returns the task of the caller that runs the code of this run.
    pub(crate) fn task(&self, py: Python<'_>, run_id: u64) -> Option<Py<PyAny>> {
        self.tasks.clone_object(py, |tasks| tasks.get(&run_id))
    }

    pub(crate) fn traverse(&self, visit: &pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        self.tasks.traverse(|tasks| tasks.values().try_for_each(|task| visit.call(task)))
    }

    fn add(&self, run_id: u64, task: Py<PyAny>) {
        let previous = self.tasks.with(|tasks| tasks.insert(run_id, task));
        drop(previous);
    }

    /// Removes a caller; returns true if any caller on the loop is guarded, or unwinds.
    fn remove(&self, py: Python<'_>, run_id: u64) -> bool {
        let removed = self.tasks.with(|tasks| tasks.remove(&run_id));
        drop(removed);
        let needs_cleanup = |(guards, unwinding): &(Py<PyDict>, Py<PySet>)| {
            !guards.bind(py).is_empty() || !unwinding.bind(py).is_empty()
        };
        self.guards_and_unwinding.get(py).is_some_and(needs_cleanup)
    }
}

/// The code of one execution, while its caller runs it.
pub(crate) struct CallerRun {
    pub(crate) branch: Py<Branch>,
    /// The caller's task.
    pub(crate) caller_task: Py<PyAny>,
    /// The `contextvars.Context` in which the code runs: a new, empty one instead of the caller's.
    pub(crate) context: Py<PyAny>,
}

impl CallerCode {
    /// Begins to run the code; returns its first branch and its arguments, or `None` if the arguments cannot be read.
    pub(crate) fn begin<'py>(
        &self,
        call: &Bound<'py, Call>,
        caller_task: Bound<'py, PyAny>,
    ) -> PyResult<Option<(CallerRun, Bound<'py, PyAny>)>> {
        let py = call.py();
        let Some((branch, input)) = Call::take_new_run(call) else { return Ok(None) };
        let branch = Bound::new(py, branch.with_host(self.host.clone_ref(py)))?;
        if let Some(callers) = call.get().callers() {
            callers.add(branch.get().run_id(), caller_task.clone().unbind());
        }
        let (caller_task, context) = (caller_task.unbind(), new_context(py)?.unbind());
        Ok(Some((CallerRun { branch: branch.unbind(), caller_task, context }, input)))
    }

    /// Calls the function, which returns a coroutine.
    pub(crate) fn call_function<'py>(&self, input: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        call_with(self.function.bind(input.py()), input)
    }
}

impl CallerRun {
    /// Ends the run; returns true if the package has to check how the run has ended.
    pub(crate) fn finish(&self, call: &Call, py: Python<'_>) -> bool {
        let Some(callers) = call.callers() else { return false };
        // the reason `Ended` proves nothing, because every end of the code stops the run
        callers.remove(py, self.branch.get().run_id())
            || matches!(
                self.branch.get().control().stop_reason(),
                Some(StopReason::Suspended | StopReason::Cancelled)
            )
    }
}
