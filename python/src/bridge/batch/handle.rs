//! [`BatchHandle`]: a reference to a batch. Its operations return a [`Call`], for which the program waits.

use pyo3::prelude::*;
use stepfast::{Error, Payload};

use super::results::BatchResults;
use crate::bridge::call::Call;
use crate::bridge::port::Port;
use crate::bridge::reply::{Reply, ReplyFuture};
use crate::fork::Process;

/// A reference to a batch.
#[pyclass(frozen)]
pub(crate) struct BatchHandle {
    batch: stepfast::BatchHandle<Payload>,
    process: Process,
}

impl BatchHandle {
    pub(crate) fn new(batch: stepfast::BatchHandle<Payload>) -> Self {
        Self { batch, process: Process::current() }
    }

    /// Returns a call that runs `query` on the batch and maps its result to a reply.
    fn query<T, F>(
        &self,
        py: Python<'_>,
        port: Option<&Bound<'_, Port>>,
        query: impl FnOnce(stepfast::BatchHandle<Payload>) -> F,
        reply: impl FnOnce(T) -> Reply + Send + 'static,
    ) -> PyResult<Call>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.process.check(py)?;
        let queried = query(self.batch.clone());
        let future: ReplyFuture = Box::pin(async move { queried.await.map_or_else(Reply::Error, reply) });
        Ok(Call::awaitable(port, future))
    }
}

#[pymethods]
impl BatchHandle {
    /// The id of the batch.
    #[getter]
    fn batch_id(&self) -> String {
        self.batch.batch_id()
    }

    /// Returns the workflow_id of an item.
    fn item_id(&self, index: u32) -> String {
        self.batch.item_id(index)
    }

    /// Returns the current status.
    fn status(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |batch: stepfast::BatchHandle<Payload>| async move { batch.status().await };
        self.query(py, port, query, |status| Reply::Text(status.to_string()))
    }

    /// Counts the items by state.
    fn counts(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |batch: stepfast::BatchHandle<Payload>| async move { batch.counts().await };
        self.query(py, port, query, Reply::BatchCounts)
    }

    /// Waits until all items have ended, and counts them.
    fn wait(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |batch: stepfast::BatchHandle<Payload>| async move { batch.wait().await };
        self.query(py, port, query, Reply::BatchCounts)
    }

    /// Retries the failed items, and returns their number.
    fn retry_failed(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |batch: stepfast::BatchHandle<Payload>| async move { batch.retry_failed().await };
        self.query(py, port, query, Reply::Count)
    }

    /// Requests that the batch be cancelled.
    fn cancel(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |batch: stepfast::BatchHandle<Payload>| async move { batch.cancel().await };
        self.query(py, port, query, Reply::RequestResult)
    }

    /// Returns a reader of the items' results.
    fn results(&self, py: Python<'_>, has_only_failures: bool) -> PyResult<BatchResults> {
        self.process.check(py)?;
        Ok(BatchResults::new(&self.batch, has_only_failures))
    }
}
