//! [`BranchCoroutine`]: the code of a branch, run step by step by its task, so that the engine sees whether it runs
//! or is blocked.

use std::sync::OnceLock;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use stepfast::guest::RunControl;

use crate::bridge::branch::Branch;
use crate::bridge::port::Port;
use crate::convert::value::call_with;
use crate::exit::InterpreterGuard;
use crate::fork::Process;
use crate::interpreter::{SendOutcome, send, set_context_var, throw};
use crate::python_functions::python_functions;

/// A coroutine that wraps a coroutine of workflow code, and that a task runs.
#[pyclass(frozen)]
pub(crate) struct BranchCoroutine {
    /// The wrapped coroutine. In the first branch, it exists only after the code has begun.
    coroutine: OnceLock<Py<PyAny>>,
    branch: Py<Branch>,
    root: Option<RootCode>,
    control: RunControl,
    port: Py<Port>,
    process: Process,
}

/// The function of the first branch with its arguments, and the registry that contains the branch's task.
struct RootCode {
    function: Py<PyAny>,
    arguments: Py<PyAny>,
    /// The tasks of the loop, by run id.
    tasks: Py<PyDict>,
}

impl BranchCoroutine {
    /// Wraps the code of a branch other than the first.
    pub(crate) fn new(branch: &Bound<'_, Branch>, coroutine: Py<PyAny>) -> PyResult<Self> {
        Self::with_root(branch, coroutine.into(), None)
    }

    fn with_root(
        branch: &Bound<'_, Branch>,
        coroutine: OnceLock<Py<PyAny>>,
        root: Option<RootCode>,
    ) -> PyResult<Self> {
        let Some(port) = branch.get().port(branch.py()) else {
            return Err(crate::error::runtime_error("the code of the branch runs in a thread"));
        };
        let (control, branch) = (branch.get().control().clone(), branch.clone().unbind());
        Ok(Self { coroutine, branch, root, control, port, process: Process::current() })
    }

    /// Runs the code with `step` until the code waits or ends.
    fn run_step<'py>(
        &self,
        py: Python<'py>,
        step: impl FnOnce(&Self) -> PyResult<SendOutcome<'py>>,
    ) -> PyResult<SendOutcome<'py>> {
        let _guard = InterpreterGuard::enter(py);
        if self.process.is_current() {
            self.control.code_started();
        }
        let sent = match (step(self), &self.root) {
            (Ok(SendOutcome::Returned(value)), Some(root)) => root.finish(self.branch.bind(py), Ok(value)),
            (Err(raised), Some(root)) => root.finish(self.branch.bind(py), Err(raised)),
            (sent, _) => sent,
        };
        if self.process.is_current() && self.control.code_blocked() {
            Port::watch(self.port.bind(py), &self.control)?;
        }
        sent
    }

    fn resume<'py>(&self, py: Python<'py>) -> PyResult<SendOutcome<'py>> {
        if let Some(coroutine) = self.coroutine.get() {
            return send(coroutine.bind(py));
        }
        let Some(root) = &self.root else {
            return Err(PyRuntimeError::new_err("the branch has no code to begin"));
        };
        let coroutine = root.begin(self.branch.bind(py))?;
        let _ = self.coroutine.set(coroutine.clone().unbind());
        send(&coroutine)
    }

    fn throw_into<'py>(&self, py: Python<'py>, raised: &Bound<'py, PyTuple>) -> PyResult<SendOutcome<'py>> {
        let Some(coroutine) = self.coroutine.get() else {
            // the code has not begun, and will not begin
            self.branch.get().defer();
            let (kind, value) =
                (raised.get_item(0)?, raised.get_item(1).ok().filter(|value| !value.is_none()));
            return Err(PyErr::from_value(value.unwrap_or(kind)));
        };
        throw(coroutine.bind(py), raised)
    }
}

impl RootCode {
    /// Makes the branch the current code, then calls the function. The current code is not reset, because the context
    /// belongs to the task alone.
    fn begin<'py>(&self, branch: &Bound<'py, Branch>) -> PyResult<Bound<'py, PyAny>> {
        let py = branch.py();
        set_context_var(python_functions(py)?.current_code.bind(py), branch)?;
        call_with(self.function.bind(py), self.arguments.bind(py))
    }

    /// Records the result of the code; returns the result of its task.
    fn finish<'py>(
        &self,
        branch: &Bound<'py, Branch>,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<SendOutcome<'py>> {
        let py = branch.py();
        let ended = result.and_then(|output| branch.get().succeed(&output)).or_else(|raised| {
            let error = raised.clone_ref(py).into_value(py);
            let ends_task =
                python_functions(py)?.code_raised_in_task.bind(py).call1((branch, error))?.is_truthy()?;
            if ends_task { Err(raised) } else { Ok(()) }
        });
        self.forget_task(branch);
        ended.map(|()| SendOutcome::Returned(py.None().into_bound(py)))
    }

    fn forget_task(&self, branch: &Bound<'_, Branch>) {
        // a task that has ended at once is not registered
        let _ = self.tasks.bind(branch.py()).del_item(branch.get().run_id());
    }
}

#[pymethods]
impl BranchCoroutine {
    /// Returns the code of an execution, which calls `function` when it begins. The task is removed from `tasks` when
    /// the code ends.
    #[staticmethod]
    fn for_execution(
        branch: &Bound<'_, Branch>,
        function: Py<PyAny>,
        arguments: Py<PyAny>,
        tasks: Py<PyDict>,
    ) -> PyResult<Self> {
        Self::with_root(branch, OnceLock::new(), Some(RootCode { function, arguments, tasks }))
    }

    /// The branch of the code.
    #[getter]
    fn branch(&self, py: Python<'_>) -> Py<Branch> {
        self.branch.clone_ref(py)
    }

    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.run_step(py, |code| code.resume(py))?.into_next()
    }

    #[allow(clippy::needless_pass_by_value, unused_variables)] // arguments that Python passes
    fn send<'py>(&self, py: Python<'py>, value: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.run_step(py, |code| code.resume(py))?.into_sent()
    }

    /// Throws an exception into the code.
    #[pyo3(signature = (*raised))]
    fn throw<'py>(&self, py: Python<'py>, raised: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.run_step(py, |code| code.throw_into(py, raised))?.into_sent()
    }

    /// The wrapped coroutine; `None` before the code has begun.
    #[getter]
    fn coroutine(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.coroutine.get().map(|coroutine| coroutine.clone_ref(py))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = match self.coroutine.get() {
            Some(coroutine) => coroutine.call_method0(py, pyo3::intern!(py, "close")).map(drop),
            None => Ok(()),
        };
        if let Some(root) = &self.root
            && self.branch.get().is_unfinished()
        {
            self.branch.get().defer();
            root.forget_task(self.branch.bind(py));
        }
        closed
    }

    /// Returns any other attribute of the wrapped coroutine, such as its name or frame. Before the code has begun,
    /// returns the attribute of the function.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        match (self.coroutine.get(), &self.root) {
            (Some(coroutine), _) => coroutine.bind(py).getattr(name),
            (None, Some(root)) => root.function.bind(py).getattr(name),
            (None, None) => Err(pyo3::exceptions::PyAttributeError::new_err(name.to_owned())),
        }
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        if let Some(root) = &self.root {
            visit.call(&root.function)?;
            visit.call(&root.arguments)?;
            visit.call(&root.tasks)?;
        }
        visit.call(self.coroutine.get())?;
        visit.call(&self.branch)?;
        visit.call(&self.port)
    }
}
