//! [`BatchResults`]: a reader of the results of a batch's items, page by page.

use std::sync::Arc;

use futures_util::stream::{BoxStream, Fuse};
use futures_util::{FutureExt, StreamExt};
use pyo3::prelude::*;
use stepfast::{BatchHandle, Error, ItemResult, Payload};
use tokio::sync::Mutex as AsyncMutex;

use crate::bridge::call::Call;
use crate::bridge::port::Port;
use crate::bridge::reply::{Reply, ReplyFuture};
use crate::fork::Process;

/// Maximum number of results in a page.
const MAX_PAGE_RESULTS: usize = 1_000;

/// The results that are still to be read.
struct Reader {
    results: Fuse<BoxStream<'static, Result<ItemResult<Payload>, Error>>>,
    /// The error that follows the page that was read last.
    error: Option<Error>,
}

/// A reader of the results of a batch's items.
#[pyclass(frozen)]
pub(crate) struct BatchResults {
    /// `None` in a forked child, whose parent reads the results.
    reader: Option<Arc<AsyncMutex<Reader>>>,
    process: Process,
}

impl Drop for BatchResults {
    fn drop(&mut self) {
        self.process.drop_if_current(self.reader.take());
    }
}

impl BatchResults {
    pub(crate) fn new(batch: &BatchHandle<Payload>, has_only_failures: bool) -> Self {
        let mut results = batch.payloads();
        if has_only_failures {
            let is_failure = |item: &Result<ItemResult<Payload>, Error>| {
                std::future::ready(!matches!(item, Ok(item) if !matches!(item.result, Err(Error::Failed(_)))))
            };
            results = results.filter(is_failure).boxed();
        }
        let reader = Arc::new(AsyncMutex::new(Reader { results: results.fuse(), error: None }));
        Self { reader: Some(reader), process: Process::current() }
    }
}

#[pymethods]
impl BatchResults {
    /// Waits for the next results, and returns a tuple for each: the index, true and the output, or the index, false and the
    /// exception. After the last result, the list is empty.
    fn next_page(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.process.check(py)?;
        let reader = self.reader.clone();
        let future: ReplyFuture = Box::pin(async move {
            let Some(reader) = reader else { return Reply::Nothing };
            reader.lock().await.next_page().await.map_or_else(Reply::Error, Reply::Items)
        });
        Ok(Call::awaitable(port, future))
    }
}

impl Reader {
    /// Waits for the next result, and also returns those behind it that are there already.
    async fn next_page(&mut self) -> Result<Vec<ItemResult<Payload>>, Error> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let mut page = Vec::new();
        if let Some(first) = self.results.next().await {
            page.push(first?);
        }
        while !page.is_empty() && page.len() < MAX_PAGE_RESULTS {
            match self.results.next().now_or_never() {
                Some(Some(Ok(item))) => page.push(item),
                Some(Some(Err(error))) => {
                    self.error = Some(error);
                    break;
                }
                Some(None) | None => break,
            }
        }
        Ok(page)
    }
}
