//! [`Code`]: the code of a branch, as its task runs it step by step: whoever waits for its rest sees that it runs.

use std::sync::OnceLock;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use stepfast::guest::Gate;

use crate::bridge::branch::Branch;
use crate::bridge::port::Port;
use crate::convert::value::call_with;
use crate::exit::InterpreterGuard;
use crate::fork::Process;
use crate::interpreter::{SendOutcome, send, set_context_var, throw};
use crate::python_functions::package;

/// A coroutine of workflow code. To its task it is a coroutine, too.
#[pyclass(frozen)]
pub(crate) struct Code {
    /// Of the first branch: not there before it begins.
    coroutine: OnceLock<Py<PyAny>>,
    branch: Py<Branch>,
    main: Option<Main>,
    gate: Gate,
    port: Py<Port>,
    process: Process,
}

/// Of the first branch: what begins, and where it is known as long as it runs.
struct Main {
    function: Py<PyAny>,
    arguments: Py<PyAny>,
    /// The tasks of its loop, by run.
    tasks: Py<PyDict>,
}

impl Code {
    /// Of a branch that goes on beside another one.
    pub(crate) fn new(branch: &Bound<'_, Branch>, coroutine: Py<PyAny>) -> PyResult<Self> {
        Self::of(branch, coroutine.into(), None)
    }

    fn of(branch: &Bound<'_, Branch>, coroutine: OnceLock<Py<PyAny>>, main: Option<Main>) -> PyResult<Self> {
        let Some(port) = branch.get().port(branch.py()) else {
            return Err(crate::error::runtime_error("its code runs in a thread"));
        };
        let (gate, branch) = (branch.get().gate().clone(), branch.clone().unbind());
        Ok(Self { coroutine, branch, main, gate, port, process: Process::current() })
    }

    /// Lets the code go on, by `step`, until it waits or ends.
    fn run<'py>(
        &self,
        py: Python<'py>,
        step: impl FnOnce(&Self) -> PyResult<SendOutcome<'py>>,
    ) -> PyResult<SendOutcome<'py>> {
        let _inside = InterpreterGuard::enter(py);
        if self.process.is_current() {
            self.gate.code_runs();
        }
        let sent = match (step(self), &self.main) {
            (Ok(SendOutcome::Returned(value)), Some(main)) => main.ended(self.branch.bind(py), Ok(value)),
            (Err(raised), Some(main)) => main.ended(self.branch.bind(py), Err(raised)),
            (sent, _) => sent,
        };
        if self.process.is_current() && self.gate.code_waits() {
            Port::watch(self.port.bind(py), &self.gate)?;
        }
        sent
    }

    fn go_on<'py>(&self, py: Python<'py>) -> PyResult<SendOutcome<'py>> {
        if let Some(coroutine) = self.coroutine.get() {
            return send(coroutine.bind(py));
        }
        let Some(main) = &self.main else {
            return Err(PyRuntimeError::new_err("the code of a branch has no beginning"));
        };
        let coroutine = main.begin(self.branch.bind(py))?;
        let _ = self.coroutine.set(coroutine.clone().unbind());
        send(&coroutine)
    }

    fn thrown<'py>(&self, py: Python<'py>, raised: &Bound<'py, PyTuple>) -> PyResult<SendOutcome<'py>> {
        let Some(coroutine) = self.coroutine.get() else {
            // it has not begun, and will not
            self.branch.get().put_off();
            let (kind, value) =
                (raised.get_item(0)?, raised.get_item(1).ok().filter(|value| !value.is_none()));
            return Err(PyErr::from_value(value.unwrap_or(kind)));
        };
        throw(coroutine.bind(py), raised)
    }
}

impl Main {
    /// Calls the function, whose branch is what runs here from now on: the context is that of its task alone.
    fn begin<'py>(&self, branch: &Bound<'py, Branch>) -> PyResult<Bound<'py, PyAny>> {
        let py = branch.py();
        set_context_var(package(py)?.here_var.bind(py), branch)?;
        call_with(self.function.bind(py), self.arguments.bind(py))
    }

    /// The code has ended: what its task comes to.
    fn ended<'py>(
        &self,
        branch: &Bound<'py, Branch>,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<SendOutcome<'py>> {
        let py = branch.py();
        let ended = result.and_then(|output| branch.get().succeed(&output)).or_else(|raised| {
            let error = raised.clone_ref(py).into_value(py);
            let ends_task = package(py)?.ended.bind(py).call1((branch, error))?.is_truthy()?;
            if ends_task { Err(raised) } else { Ok(()) }
        });
        self.forget(branch);
        ended.map(|()| SendOutcome::Returned(py.None().into_bound(py)))
    }

    fn forget(&self, branch: &Bound<'_, Branch>) {
        // it is not there if it has come to its end at once
        let _ = self.tasks.bind(branch.py()).del_item(branch.get().run());
    }
}

#[pymethods]
impl Code {
    /// The code of an execution, which calls `function` when it begins. The loop forgets its task when it ends.
    #[staticmethod]
    fn main(
        branch: &Bound<'_, Branch>,
        function: Py<PyAny>,
        arguments: Py<PyAny>,
        tasks: Py<PyDict>,
    ) -> PyResult<Self> {
        Self::of(branch, OnceLock::new(), Some(Main { function, arguments, tasks }))
    }

    /// Whose code it is.
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
        self.run(py, |code| code.go_on(py))?.into_next()
    }

    #[allow(clippy::needless_pass_by_value, unused_variables)] // what Python hands over
    fn send<'py>(&self, py: Python<'py>, value: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, |code| code.go_on(py))?.into_sent()
    }

    /// An exception enters the code.
    #[pyo3(signature = (*raised))]
    fn throw<'py>(&self, py: Python<'py>, raised: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, |code| code.thrown(py, raised))?.into_sent()
    }

    /// The coroutine, once there is one.
    #[getter]
    fn coroutine(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.coroutine.get().map(|coroutine| coroutine.clone_ref(py))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = match self.coroutine.get() {
            Some(coroutine) => coroutine.call_method0(py, pyo3::intern!(py, "close")).map(drop),
            None => Ok(()),
        };
        if let Some(main) = &self.main
            && self.branch.get().is_unfinished()
        {
            self.branch.get().put_off();
            main.forget(self.branch.bind(py));
        }
        closed
    }

    /// All else is the coroutine's: its name, its frame, what it awaits; before it begins, the function's.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        match (self.coroutine.get(), &self.main) {
            (Some(coroutine), _) => coroutine.bind(py).getattr(name),
            (None, Some(main)) => main.function.bind(py).getattr(name),
            (None, None) => Err(pyo3::exceptions::PyAttributeError::new_err(name.to_owned())),
        }
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        if let Some(main) = &self.main {
            visit.call(&main.function)?;
            visit.call(&main.arguments)?;
            visit.call(&main.tasks)?;
        }
        visit.call(self.coroutine.get())?;
        visit.call(&self.branch)?;
        visit.call(&self.port)
    }
}
