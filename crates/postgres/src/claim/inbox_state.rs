//! [`InboxState`]: the state of draining the inbox, kept from claim to claim.

use std::sync::atomic::AtomicI64;

use stepfast_core::sync::Mutex;

/// The maximum number of inbox rows that one statement drains.
pub(super) const MAX_INBOX_ROWS: i64 = 1_000;

/// The state of draining the inbox. Claims drain the inbox in batches of rows, which become smaller after the
/// database has rejected one.
#[derive(Debug)]
pub(crate) struct InboxState {
    /// The maximum number of rows of the next batch.
    pub(super) next_batch_size: AtomicI64,
    /// The id of a row that the database has rejected, and the reason.
    pub(super) rejected_row: Mutex<Option<(i64, String)>>,
}

impl Default for InboxState {
    fn default() -> Self {
        Self { next_batch_size: AtomicI64::new(MAX_INBOX_ROWS), rejected_row: Mutex::default() }
    }
}

/// The rows of the inbox that one statement drains.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboxBatch {
    pub(super) max_rows: i64,
    /// The id of the only row to drain. `None` means the first `max_rows` rows.
    pub(super) only_row: Option<i64>,
}
