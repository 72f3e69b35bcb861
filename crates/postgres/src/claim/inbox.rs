//! Draining of the inbox in the transaction of a claim.

use std::sync::atomic::Ordering::Relaxed;

use stepfast_core::store::StoreError;
use stepfast_core::text::escape_controls;

use crate::claim::inbox_state::{InboxBatch, MAX_INBOX_ROWS};
use crate::claim::transaction::ClaimTx;
use crate::conn::pipeline::{Query, param};
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};
use crate::rows::Columns;

impl ClaimTx<'_> {
    /// Drains one batch of the inbox. Before that, moves the row that the database rejected in the last try, if any, to
    /// the dead letters.
    pub(super) async fn drain_inbox(&mut self) -> Result<(), DbError> {
        let rejected = self.memory.inbox.rejected_row.lock().take();
        if let Some((id, reason)) = rejected {
            let params = vec![param(id), param(reason.clone())];
            let query = Query { sql: Sql::InsertDeadLetter, action: "storing a dead letter", params };
            if let Some(row) = self.send(TxPart::Middle, vec![query]).await?[0].rows.first() {
                let mut row = Columns::new(row);
                let (id, workflow): (i64, &str) = (row.next()?, row.next()?);
                tracing::warn!(
                    id,
                    workflow = escape_controls(workflow),
                    reason = escape_controls(&reason),
                    "moved an inbox row to the dead letters: see stepfast queue dead-letters"
                );
            }
        }
        let mut batch =
            InboxBatch { max_rows: self.memory.inbox.next_batch_size.load(Relaxed), only_row: None };
        if batch.max_rows == 1 {
            let first = Query { sql: Sql::FirstInboxRow, action: "reading the inbox", params: Vec::new() };
            let rows = &self.send(TxPart::Middle, vec![first]).await?[0].rows;
            batch.only_row = rows.first().map(|row| Columns::new(row).next()).transpose()?;
        }
        self.inbox_batch = Some(batch);
        let params = vec![param(self.now()), param(batch.max_rows), param(batch.only_row)];
        let drain = Query { sql: Sql::DrainInbox, action: "draining the inbox", params };
        let drained = self.send(TxPart::Middle, vec![drain]).await?[0].rows.first();
        let mut row = Columns::new(drained.ok_or_else(|| corrupt("a query result"))?);
        self.drained_rows = row.next()?;
        self.inbox_batch = None;
        self.memory.inbox.next_batch_size.store((batch.max_rows * 2).min(MAX_INBOX_ROWS), Relaxed);
        Ok(())
    }

    /// Returns whether the database has rejected the batch of the inbox. The next try then drains a smaller batch, or
    /// moves the rejected row to the dead letters.
    pub(super) fn handle_inbox_error(&mut self, error: &DbError) -> bool {
        let Some(batch) = self.inbox_batch.take() else { return false };
        let (DbError::Store(StoreError::Rejected(reason))
        | DbError::Unexplained(reason)
        | DbError::Cancelled(reason)) = error
        else {
            return false;
        };
        match batch.only_row {
            Some(id) => *self.memory.inbox.rejected_row.lock() = Some((id, reason.clone())),
            None => self.memory.inbox.next_batch_size.store((batch.max_rows / 10).max(1), Relaxed),
        }
        true
    }
}
