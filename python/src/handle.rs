//! [`Handle`]: a reference to an execution, with its waits as calls.

use futures_util::future::join_all;
use pyo3::prelude::*;
use stepfast::Payload;

use crate::call::{Call, Future, Reply};
use crate::port::Port;

/// A reference to an execution.
#[pyclass(frozen)]
pub(crate) struct Handle {
    handle: stepfast::Handle<Payload>,
}

impl Handle {
    pub(crate) fn new(handle: stepfast::Handle<Payload>) -> Self {
        Self { handle }
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
    fn result(&self, port: Option<&Bound<'_, Port>>) -> Call {
        let output = self.handle.payload();
        Call::new(port, None, Box::pin(async move { Reply::of_end(output.await) }))
    }

    /// Its status now.
    fn status(&self, port: Option<&Bound<'_, Port>>) -> Call {
        let handle = self.handle.clone();
        let future: Future = Box::pin(async move {
            match handle.status().await {
                Ok(status) => Reply::Text(status.to_string()),
                Err(error) => Reply::Error(error),
            }
        });
        Call::new(port, None, future)
    }

    /// Asks that it be cancelled.
    fn cancel(&self, port: Option<&Bound<'_, Port>>) -> Call {
        let handle = self.handle.clone();
        let future: Future = Box::pin(async move {
            match handle.cancel().await {
                Ok(answer) => Reply::Answer(answer),
                Err(error) => Reply::Error(error),
            }
        });
        Call::new(port, None, future)
    }

    /// Asks that it go on, if it is parked, failed or cancelled.
    fn resume(&self, port: Option<&Bound<'_, Port>>) -> Call {
        let handle = self.handle.clone();
        let future: Future = Box::pin(async move {
            match handle.resume().await {
                Ok(answer) => Reply::Answer(answer),
                Err(error) => Reply::Error(error),
            }
        });
        Call::new(port, None, future)
    }

    /// The outputs of all of `handles`, or the errors they ended with: one call for all of them.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value)] // what Python hands over
    fn results(handles: Vec<PyRef<'_, Self>>, port: Option<&Bound<'_, Port>>) -> Call {
        let outputs: Vec<_> = handles.iter().map(|handle| handle.handle.payload()).collect();
        Call::new(port, None, Box::pin(async move { Reply::Many(join_all(outputs).await) }))
    }
}
