//! [`Handle`]: a reference to an execution, with its waits as calls.

use futures_util::future::join_all;
use pyo3::prelude::*;
use stepfast::Payload;

use crate::bridge::call::Call;
use crate::bridge::coroutine::Carried;
use crate::bridge::port::Port;
use crate::bridge::reply::{Future, Reply};
use crate::fork::Process;

/// A reference to an execution.
#[pyclass(frozen)]
pub(crate) struct Handle {
    handle: stepfast::Handle<Payload>,
    process: Process,
}

impl Handle {
    pub(crate) fn new(handle: stepfast::Handle<Payload>) -> Self {
        Self { handle, process: Process::current() }
    }
}

#[pymethods]
impl Handle {
    /// Its workflow_id.
    #[getter]
    fn workflow_id(&self) -> String {
        self.handle.workflow_id()
    }

    /// Its output, when it has ended.
    fn result(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.process.check(py)?;
        let output = self.handle.payload();
        let future: Future = Box::pin(async move { Reply::of_end(output.await) });
        Ok(Call::awaitable_as(Carried::named("the result of a handle"), port, future))
    }

    /// Its status now.
    fn status(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.process.check(py)?;
        let handle = self.handle.clone();
        let future: Future = Box::pin(async move {
            match handle.status().await {
                Ok(status) => Reply::Text(status.to_string()),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }

    /// Asks that it be cancelled.
    fn cancel(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.process.check(py)?;
        let handle = self.handle.clone();
        let future: Future = Box::pin(async move {
            match handle.cancel().await {
                Ok(answer) => Reply::Answer(answer),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }

    /// Asks that it go on, if it is parked, failed or cancelled.
    fn resume(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.process.check(py)?;
        let handle = self.handle.clone();
        let future: Future = Box::pin(async move {
            match handle.resume().await {
                Ok(answer) => Reply::Answer(answer),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }

    /// The outputs of all of `handles`, or the errors they ended with: one call for all of them.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value)] // what Python hands over
    fn results(
        py: Python<'_>,
        handles: Vec<PyRef<'_, Self>>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        for handle in &handles {
            handle.process.check(py)?;
        }
        let outputs: Vec<_> = handles.iter().map(|handle| handle.handle.payload()).collect();
        Ok(Call::awaitable(port, Box::pin(async move { Reply::Many(join_all(outputs).await) })))
    }
}
