//! The results of a batch's items, as streams.

use futures_util::stream::{Stream, StreamExt};
use serde::de::DeserializeOwned;

use super::BatchHandle;
use crate::error::Error;
use crate::payload::FromPayload;
use crate::runtime::batch::results::{ItemResult, read_results};

impl<O: DeserializeOwned + Send + 'static> BatchHandle<O> {
    /// Returns the results of all items in the order of their indexes, each as soon as its bundle has ended. The stream
    /// ends after the last item of the batch; memory stays bounded.
    ///
    /// An error of the stream itself, such as [`Error::Unavailable`], concerns no item; the stream may be polled again.
    pub fn results(&self) -> impl Stream<Item = Result<ItemResult<O>, Error>> + Send + use<O> {
        results_of(self)
    }

    /// Returns the results of the items that failed, in the order of their indexes; in all other respects like
    /// [`results`](Self::results).
    pub fn failures(&self) -> impl Stream<Item = Result<ItemResult<O>, Error>> + Send + use<O> {
        self.results().filter(|item| {
            let is_kept = matches!(item, Err(_) | Ok(ItemResult { result: Err(Error::Failed(_)), .. }));
            std::future::ready(is_kept)
        })
    }
}

/// Returns the results of all items, like [`BatchHandle::results`]. After the end of the engine, the stream fails.
pub(crate) fn results_of<O: FromPayload + Send + 'static>(
    batch: &BatchHandle<O>,
) -> impl Stream<Item = Result<ItemResult<O>, Error>> + Send + use<O> {
    let engine = batch.engine().clone();
    read_results(&batch.batch).map(move |item| engine.check_open().and(item))
}
