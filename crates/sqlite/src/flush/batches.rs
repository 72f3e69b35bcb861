//! Batches: the Starts of batches and of their bundles, the packed outcomes of items, and the ends of batches.

use std::collections::HashMap;

use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{CloseBatch, Outcome, Pack, Start, Write};

use crate::conn::statements::{BATCH_ROWS, Sql, Statements};
use crate::error::DbResult;
use crate::flush::apply::FlushApplier;
use crate::rows::batches::{end_batch, range_bytes, read_batch};
use crate::rows::key_bytes;

/// The end of an unfinished batch, to which bundles are appended.
#[derive(Clone, Copy)]
struct BatchEnd {
    /// The number of items of a closed batch.
    closed_with: Option<u64>,
    /// The index of the first item of the next bundle.
    next_item: u64,
}

impl BatchEnd {
    /// Reads the end of a batch; `None` unless the batch is unfinished.
    fn read(sql: &mut Statements<'_>, batch: Key) -> DbResult<Option<Self>> {
        let Some(batch_row) = read_batch(sql, batch)? else { return Ok(None) };
        let statement = sql.get(Sql::LastBundle)?;
        let bundles = batch.bundles();
        let last: Option<[u8; 16]> = statement.query_row(range_bytes(&bundles), |row| row.get(0))?;
        let last = last.and_then(|bytes| Key::from_bytes(bytes).last_index());
        Ok(Some(Self {
            closed_with: batch_row.closed_with,
            next_item: last.map_or(0, |last| u64::from(last) + 1),
        }))
    }

    /// Whether the bundle continues the batch.
    fn fits(&self, bundle: &Start) -> bool {
        let (Some(first), Some(last)) = (bundle.first_item(), bundle.key.last_index()) else { return false };
        u64::from(first) == self.next_item && self.closed_with.is_none_or(|count| count > u64::from(last))
    }
}

/// Whether the execution is a batch, a bundle or a retried item. Their Starts precede all other Writes of a flush.
pub(super) fn is_of_batch(start: &Start) -> bool {
    start.key.is_batch() || start.is_bundle() || start.is_retried_item()
}

impl<'f> FlushApplier<'_, 'f> {
    /// Applies the Starts of batches and of retried items, and then those of bundles. Adds their outcomes.
    pub(super) fn apply_batch_starts(&mut self, outcomes: &mut Vec<(usize, Outcome)>) -> DbResult<()> {
        let flush = self.flush;
        let mut bundles: Vec<(usize, &'f Start)> = Vec::new();
        for (i, write) in flush.writes.iter().enumerate() {
            match write {
                Write::Start(start) if start.key.is_batch() => {
                    outcomes.push((i, self.apply_batch_start(start)?));
                }
                Write::Start(start) if start.is_bundle() => bundles.push((i, start)),
                Write::Start(start) if start.is_retried_item() => {
                    let outcome = self.apply_start(start)?;
                    if outcome == Outcome::Applied {
                        self.insert_bundles(&[(start.key, 1)])?;
                    }
                    outcomes.push((i, outcome));
                }
                _ => {}
            }
        }
        if bundles.is_empty() {
            return Ok(());
        }
        let mut ends: HashMap<Key, Option<BatchEnd>> = HashMap::new();
        let mut inserted = Vec::with_capacity(bundles.len());
        for (i, start) in bundles {
            let outcome = self.apply_bundle_start(start, &mut ends)?;
            if outcome == Outcome::Applied {
                inserted.push((start.key, start.item_count.unwrap_or_default()));
            }
            outcomes.push((i, outcome));
        }
        self.insert_bundles(&inserted)
    }

    fn apply_batch_start(&mut self, start: &'f Start) -> DbResult<Outcome> {
        let outcome = self.apply_start(start)?;
        if outcome == Outcome::Applied && !start.state.status().is_terminal() {
            let item_count = start.item_count.map(|count| count as i64);
            self.sql.insert(Table::Batches, Sql::InsertBatch, (key_bytes(&start.key), item_count))?;
        }
        Ok(outcome)
    }

    /// Applies the Start of a bundle if it fits. `ends` are the ends of batches that are known so far.
    fn apply_bundle_start(
        &mut self,
        start: &'f Start,
        ends: &mut HashMap<Key, Option<BatchEnd>>,
    ) -> DbResult<Outcome> {
        let batch = start.key.batch().unwrap_or_default();
        let end = match ends.get(&batch) {
            Some(end) => *end,
            None => BatchEnd::read(&mut self.sql, batch)?,
        };
        let fitting = end.filter(|end| end.fits(start));
        ends.insert(batch, end);
        let Some(end) = fitting else { return self.outcome_if_rejected(start, Outcome::NotFound) };
        let outcome = self.apply_start(start)?;
        if let (Outcome::Applied, Some(count)) = (&outcome, start.item_count) {
            ends.insert(batch, Some(BatchEnd { next_item: end.next_item + count, ..end }));
        }
        Ok(outcome)
    }

    /// Inserts the rows of bundles, given as pairs of key and number of items.
    fn insert_bundles(&mut self, bundles: &[(Key, u64)]) -> DbResult<()> {
        let (batches, rest) = bundles.as_chunks::<BATCH_ROWS>();
        for batch in batches {
            let statement = self.sql.get(Sql::InsertBundleBatch)?;
            for (n, (key, item_count)) in batch.iter().enumerate() {
                statement.raw_bind_parameter(2 * n + 1, key_bytes(key))?;
                statement.raw_bind_parameter(2 * n + 2, *item_count as i64)?;
            }
            statement.raw_execute()?;
        }
        for (key, item_count) in rest {
            self.sql.run(Sql::InsertBundle, (key_bytes(key), *item_count as i64))?;
        }
        self.sql.counts.inserted[Table::Bundles as usize] += bundles.len() as u64;
        Ok(())
    }

    pub(super) fn apply_pack(&mut self, pack: &Pack) -> DbResult<Outcome> {
        let encoded = Payload::from_bytes(pack.encode().into());
        let ended = pack.ended();
        let counts = [ended.completed, ended.failed, ended.cancelled].map(|count| count as i64);
        let pending_count = self.pieces.pending_count();
        let outcomes = self.pieces.column_value(&mut self.sql, &encoded)?;
        let (id, number) = (key_bytes(&pack.bundle), pack.number());
        let params = (id, number, counts[0], counts[1], counts[2], outcomes.bytes());
        let rows = self.sql.insert(Table::Packs, Sql::InsertPack, params)?;
        if rows == 0 {
            self.pieces.discard_pending(pending_count);
        }
        if rows == 1 || self.compare_row(Sql::ComparePack, (id, number), &encoded)? == Some(true) {
            return Ok(Outcome::Applied);
        }
        Ok(Outcome::Rejected(format!("bundle {} has another pack {number}", pack.bundle).into()))
    }

    pub(super) fn close_batch(&mut self, close: &CloseBatch) -> DbResult<Outcome> {
        let (id, item_count) = (key_bytes(&close.batch), close.item_count as i64);
        let bundles = close.batch.bundles();
        let (first, last) = range_bytes(&bundles);
        let params = (id, item_count, first, last);
        let is_closed = self.sql.update(Table::Batches, Sql::CloseBatch, params)? > 0
            || self.sql.exists(Sql::CloseBatchAgain, params)?;
        Ok(if is_closed { Outcome::Applied } else { Outcome::NotFound })
    }

    /// Applies the Wake of a batch.
    pub(super) fn wake_batch(&mut self, batch: Key) -> DbResult<Outcome> {
        let has_ended = end_batch(&mut self.sql, batch, self.now)?;
        Ok(if has_ended { Outcome::Applied } else { Outcome::NotFound })
    }
}
