//! The reading of streams, which grow while their executions run.

use std::sync::Arc;

use futures_util::future::OptionFuture;
use tokio::time::Instant;

use crate::error::Error;
use crate::key::Key;
use crate::name_checks::check_name;
use crate::payload::{INLINE_LIMIT, Payload};
use crate::runtime::completion_watch::RETRY_DELAY;
use crate::runtime::inner::EngineInner;
use crate::store::{StreamEntry, StreamQuery};

/// Returns an error for a name that no stream can have.
pub(crate) fn check_stream_name(name: &str) -> Result<(), Error> {
    check_name("stream", name)
}

/// Returns an error for a value that is too large for a stream.
pub(crate) fn check_stream_value(stream: &str, value: &Payload) -> Result<(), Error> {
    let size = value.len();
    if size <= INLINE_LIMIT {
        return Ok(());
    }
    let reason = format!(
        "the value for stream {stream:?} has {size} bytes, and the limit is {INLINE_LIMIT}; write it in parts, or store it \
         elsewhere and write where"
    );
    Err(Error::Invalid { input: "value", reason })
}

/// The place of a reader in a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamPlace {
    pub(crate) execution: Key,
    pub(crate) stream: Arc<str>,
    /// The offset of the next entry; `None` when the reader has reached the end of the stream.
    pub(crate) next: Option<i64>,
    /// Whether the reader waits for values that are still to be written.
    pub(crate) waits: bool,
}

impl EngineInner {
    /// Waits for the next entries of a stream, and moves the place behind them. Returns no entries at the end of the stream.
    pub(crate) async fn next_entries(&self, place: &mut StreamPlace) -> Result<Vec<StreamEntry>, Error> {
        let Some(from) = place.next else { return Ok(Vec::new()) };
        let query =
            StreamQuery { execution: place.execution, stream: place.stream.clone(), from: Some(from) };
        let changes = self.stream_watch.watch(place.execution);
        let ends = self.completion_watch.watch(place.execution);
        self.leave_idleness();
        loop {
            let (change, end) = (changes.next_change(), ends.next_change());
            // a search may hang, which must not delay the engine's end
            let found = tokio::select! {
                biased;
                found = self.find_entries(&query) => found,
                () = self.wait_stopped() => return Err(self.closed_error()),
            };
            let mut retry_at = None;
            match found {
                Ok(Some(mut entries)) => {
                    let last = entries.last();
                    place.next = last.filter(|entry| !entry.is_end()).map(|entry| entry.offset + 1);
                    entries.retain(|entry| !entry.is_end());
                    return Ok(entries);
                }
                Ok(None) if !place.waits => {
                    place.next = None;
                    return Ok(Vec::new());
                }
                Ok(None) => {}
                Err(error @ (Error::Unavailable(_) | Error::PermissionDenied(_))) => {
                    tracing::debug!(%error, "cannot read a stream; retrying");
                    retry_at = Some(Instant::now() + RETRY_DELAY);
                }
                Err(error) => return Err(error),
            }
            if self.is_poisoned() || *self.wakeups.is_stopped.borrow() {
                return Err(self.closed_error());
            }
            let retry = OptionFuture::from(retry_at.map(tokio::time::sleep_until));
            tokio::select! {
                () = change => {}
                () = end => {}
                Some(()) = retry => {}
            }
        }
    }

    /// Returns entries of a stream, no entries if the stream has ended, and `None` if it may still grow.
    async fn find_entries(&self, query: &StreamQuery) -> Result<Option<Vec<StreamEntry>>, Error> {
        let entries = self.stream_loads.load(query.clone()).await?;
        if !entries.is_empty() {
            return Ok(Some(entries));
        }
        if query.from > Some(0) {
            // the end of a closed stream may be before the place
            let last = self.stream_loads.load(StreamQuery { from: None, ..query.clone() }).await?.pop();
            if last.is_some_and(|entry| entry.is_end() && Some(entry.offset) < query.from) {
                return Ok(Some(Vec::new()));
            }
        }
        let Some(execution) = self.load_execution(query.execution).await? else {
            return Err(Error::NotFound { workflow_id: query.execution.to_string() });
        };
        if !execution.status.is_terminal() {
            return Ok(None);
        }
        // entries may have become durable between the two queries
        self.stream_loads.load(query.clone()).await.map(Some)
    }
}
