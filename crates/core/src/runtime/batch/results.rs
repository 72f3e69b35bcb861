//! The results of a batch's items, read in pages.

use std::marker::PhantomData;

use futures_util::stream::{self, Stream};

use super::StoredBatch;
use crate::error::Error;
use crate::key::Key;
use crate::payload::{FromPayload, Payload};
use crate::runtime::outcome::{decode_outcome, parked_error};
use crate::store::{Detail, ExecutionId, Record, Status};

/// The result of an item.
#[derive(Clone, Debug)]
pub struct ItemResult<O> {
    /// The index of the item in its batch, from 0.
    pub index: u32,
    /// The output; or [`Error::Failed`], [`Error::Cancelled`], [`Error::Parked`] for an item that waits until it is resumed,
    /// or [`Error::Decode`] if the output is not an `O`.
    pub result: Result<O, Error>,
}

/// Number of bundles in a page.
const PAGE_BUNDLES: u64 = 8;

/// The position in a batch whose results are read.
struct ResultReader<O> {
    batch: StoredBatch,
    next_index: u32,
    /// Whether the batch has ended, so that no further bundle will follow.
    has_ended: bool,
    page: std::vec::IntoIter<PageItem>,
    output: PhantomData<fn() -> O>,
}

/// An item of a page that has ended or cannot end.
struct PageItem {
    index: u32,
    end: Result<(Status, Payload), Error>,
}

/// Returns the results of all items in the order of their indexes, each as soon as its bundle has ended.
pub(crate) fn read_results<O: FromPayload + Send + 'static>(
    batch: &StoredBatch,
) -> impl Stream<Item = Result<ItemResult<O>, Error>> + Send + use<O> {
    let page = Vec::new().into_iter();
    let reader =
        ResultReader { batch: batch.clone(), next_index: 0, has_ended: false, page, output: PhantomData };
    stream::unfold(reader, |mut reader| async move { Some((reader.next().await.transpose()?, reader)) })
}

impl<O: FromPayload> ResultReader<O> {
    /// Returns the next result; `None` after the last one.
    async fn next(&mut self) -> Result<Option<ItemResult<O>>, Error> {
        loop {
            if let Some(PageItem { index, end }) = self.page.next() {
                let result = match end {
                    Ok((status, outcome)) => {
                        let key = self.batch.key.item(index);
                        decode_outcome(&self.batch.engine, key, status, outcome).await
                    }
                    Err(error) => Err(error),
                };
                return Ok(Some(ItemResult { index, result }));
            }
            if !self.read_page().await? {
                return Ok(None);
            }
        }
    }

    /// Reads the outcomes of the next bundles, and waits until they have ended. Returns false after the last bundle.
    async fn read_page(&mut self) -> Result<bool, Error> {
        let (engine, batch) = (self.batch.engine.clone(), self.batch.key);
        let bundles = engine.store.bundles(batch, self.next_index, PAGE_BUNDLES).await?;
        let Some(last) = bundles.last().and_then(|key| key.last_index()) else {
            if self.has_ended {
                return Ok(false);
            }
            let closed_with = engine.store.batch_items(batch).await?.closed_with;
            if closed_with.is_some_and(|count| count <= u64::from(self.next_index)) {
                return Ok(false);
            }
            // the batch may still be submitted
            engine.wait_ended_or_parked(batch).await?;
            self.has_ended = true;
            return Ok(true);
        };
        for bundle in &bundles {
            engine.wait_ended_or_parked(*bundle).await?;
        }
        let ids: Vec<ExecutionId> = bundles.iter().map(|key| ExecutionId::Key(*key)).collect();
        let mut page = Vec::new();
        for record in engine.store.load(&ids, Detail::Outcome).await?.into_iter().flatten() {
            page.extend(self.items_of(&record).await?);
        }
        page.retain(|item| item.index >= self.next_index);
        self.next_index = last.saturating_add(1);
        self.page = page.into_iter();
        Ok(true)
    }

    /// Returns the items of a bundle that has ended. Waits for the ends of promoted items.
    async fn items_of(&self, record: &Record) -> Result<Vec<PageItem>, Error> {
        let (engine, execution) = (&self.batch.engine, &record.execution);
        let (Some(bundle), Some(last)) = (&record.bundle, execution.key.last_index()) else {
            return Ok(Vec::new());
        };
        if !execution.status.is_terminal() {
            return Err(parked_error(execution.workflow_id(), &execution.outcome));
        }
        let mut outcomes = bundle.outcomes().ok_or_else(|| damaged(execution.key))?.into_iter().peekable();
        let first = execution.key.first_index(bundle.item_count).unwrap_or_default();
        let mut items = Vec::with_capacity(bundle.item_count as usize);
        for index in first..=last {
            let end = match outcomes.next_if(|it| it.index == index) {
                Some(packed) => Ok((packed.status, packed.outcome)),
                None if bundle.promoted.binary_search(&index).is_ok() => {
                    let item = engine.wait_ended_or_parked(self.batch.key.item(index)).await?;
                    if item.is_parked {
                        Err(parked_error(self.batch.item_id(index), &item.outcome))
                    } else {
                        Ok((item.status, item.outcome))
                    }
                }
                // the bundle was cancelled
                None => Ok((execution.status, execution.outcome.clone())),
            };
            items.push(PageItem { index, end });
        }
        Ok(items)
    }
}

/// Returns the error for a bundle whose outcomes cannot be read.
pub(crate) fn damaged(bundle: Key) -> Error {
    Error::Corrupt(format!("the outcomes of bundle {bundle} cannot be read"))
}
