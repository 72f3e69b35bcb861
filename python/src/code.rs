//! [`Code`]: the code of a branch, as its task runs it step by step: whoever waits for its rest sees that it runs.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use stepfast::guest::Gate;

use crate::forked::Process;
use crate::interpreter::{Sent, returned, send};
use crate::port::Port;

/// A coroutine of workflow code. To its task it is a coroutine, too.
#[pyclass(frozen)]
pub(crate) struct Code {
    coroutine: Py<PyAny>,
    gate: Gate,
    port: Py<Port>,
    process: Process,
}

impl Code {
    pub(crate) fn new(coroutine: Py<PyAny>, gate: Gate, port: Py<Port>) -> Self {
        Self { coroutine, gate, port, process: Process::current() }
    }

    /// Lets the code go on, by `step`, until it waits or ends.
    fn run<'py>(
        &self,
        py: Python<'py>,
        step: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.process.is_current() {
            self.gate.code_runs();
        }
        let waits = step(self.coroutine.bind(py));
        if self.process.is_current() && self.gate.code_waits() {
            Port::watch(self.port.bind(py), &self.gate)?;
        }
        waits
    }
}

#[pymethods]
impl Code {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, |coroutine| match send(coroutine)? {
            Sent::Yielded(awaited) => Ok(awaited),
            Sent::Returned(value) => Err(returned(value)),
        })
    }

    fn send<'py>(&self, py: Python<'py>, value: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, |coroutine| coroutine.call_method1(pyo3::intern!(py, "send"), (value,)))
    }

    /// An exception enters the code.
    #[pyo3(signature = (*raised))]
    fn throw<'py>(&self, py: Python<'py>, raised: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, |coroutine| coroutine.call_method1(pyo3::intern!(py, "throw"), raised))
    }

    /// The coroutine.
    #[getter]
    fn coroutine(&self, py: Python<'_>) -> Py<PyAny> {
        self.coroutine.clone_ref(py)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.coroutine.call_method0(py, pyo3::intern!(py, "close")).map(drop)
    }

    /// All else is the coroutine's: its name, its frame, what it awaits.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.coroutine.bind(py).getattr(name)
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.coroutine)?;
        visit.call(&self.port)
    }
}
