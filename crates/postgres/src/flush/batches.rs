//! [`BatchWrites`]: the Writes of a flush that only concern batches.

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::store::{CloseBatch, Flush, Pack, Write};

use crate::conn::batches::{end_batches_query, lock_batches_query};
use crate::conn::pipeline::{Query, column, param};
use crate::conn::statements::Sql;
use crate::flush::bundles::stored_count;
use crate::rows::types::to_uuid;

/// The Writes of a flush that only concern batches.
#[derive(Default)]
pub(crate) struct BatchWrites<'a> {
    packs: Vec<&'a Pack>,
    closed: Vec<&'a CloseBatch>,
    /// The batches to wake, in key order.
    woken: Vec<Key>,
    /// Batches that guards and requests of the flush depend on.
    guarding: Vec<Key>,
}

impl<'a> BatchWrites<'a> {
    /// Finds these Writes in a flush.
    pub(crate) fn from_flush(flush: &'a Flush) -> Self {
        let mut found = Self::default();
        for write in &flush.writes {
            match write {
                Write::Pack(pack) => found.packs.push(pack),
                Write::CloseBatch(close) => {
                    found.closed.push(close);
                    found.guarding.push(close.batch);
                }
                Write::Wake(key) if key.is_batch() => found.woken.push(*key),
                Write::Start(start) if start.is_bundle() => found.guarding.extend(start.key.batch()),
                Write::Request(request) if request.execution.is_batch() => {
                    found.guarding.push(request.execution);
                }
                _ => {}
            }
        }
        found.woken.sort_unstable();
        found
    }

    /// Whether the flush wakes batches.
    pub(crate) fn has_wakes(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Returns the query that locks the batches that guards and requests depend on; `None` without such batches. A
    /// statement with a later snapshot checks the guards. A Wake needs no lock: no bundle fits into a complete batch.
    pub(crate) fn lock_query(&self) -> Option<Query<'static>> {
        lock_batches_query(self.guarding.clone())
    }

    /// Adds the query that records the packs.
    pub(crate) fn push_packs(&self, queries: &mut Vec<Query<'a>>) {
        if self.packs.is_empty() {
            return;
        }
        let rows: Vec<_> = self.packs.iter().map(|pack| (*pack, pack.ended())).collect();
        let params = vec![
            column(&rows, |(pack, _)| i64::from(pack.number())),
            column(&rows, |(_, ended)| ended.completed.cast_signed()),
            column(&rows, |(_, ended)| ended.failed.cast_signed()),
            column(&rows, |(_, ended)| ended.cancelled.cast_signed()),
            column(&rows, |(pack, _)| to_uuid(pack.bundle)),
            column(&rows, |(pack, _)| pack.encode()),
        ];
        queries.push(Query { sql: Sql::InsertPacks, action: "inserting packs", params });
    }

    /// Adds the queries that close and end batches. They come after the Starts and Transitions of the flush. `now`: the
    /// present time, `None` for the server's.
    pub(crate) fn push_changes(&self, flush: &Flush, now: Option<Timestamp>, queries: &mut Vec<Query<'a>>) {
        if !self.closed.is_empty() {
            let closed = &self.closed;
            let params = vec![
                column(closed, |close| to_uuid(close.batch)),
                column(closed, |close| stored_count(close.item_count)),
                column(closed, |close| to_uuid(close.batch.bundle(0))),
                param(flush.worker.0),
                param(flush.lane.cast_signed()),
            ];
            queries.push(Query { sql: Sql::CloseBatches, action: "closing batches", params });
        }
        if self.has_wakes() {
            queries.push(end_batches_query(&self.woken, now));
        }
    }
}
