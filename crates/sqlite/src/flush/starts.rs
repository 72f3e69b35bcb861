//! Starts: inserts executions, unless they are duplicates or their queue is full.

use rusqlite::{OptionalExtension, params};
use stepfast_core::clock::{Timestamp, stored_millis};
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Outcome, Start, State};

use crate::conn::statements::Sql;
use crate::error::DbResult;
use crate::flush::apply::FlushApplier;
use crate::flush::row_batches::RowShape;
use crate::rows::payloads::ColumnValue;
use crate::rows::{key_bytes, parse_existing_row};

impl<'f> FlushApplier<'_, 'f> {
    pub(crate) fn apply_start(&mut self, start: &'f Start) -> DbResult<Outcome> {
        if let Some(merged) = self.merge_debounced(start)? {
            return Ok(merged);
        }
        let mut begins_now = false;
        if let Some(placement) = start.waiting_placement() {
            let check = self.depth_checks.get(&mut self.sql, &placement.queue)?;
            begins_now = start.is_self_claiming() && check.allows_immediate_start;
            if !begins_now && !check.try_admit(&mut self.sql, start, &placement.queue)? {
                return self.outcome_if_rejected(start, Outcome::Full);
            }
        }
        if start.is_self_claiming() && !begins_now {
            let queued = Start { state: State::Queued { pending_sleeps: Vec::new() }, ..start.clone() };
            if self.insert_start(&queued)? == 0 {
                return self.duplicate_outcome(start);
            }
            self.insert_attributes(start)?;
            self.insert_ready(start)?;
            return Ok(Outcome::Queued);
        }
        let inserted = match RowShape::of(start) {
            Some(shape) => self.insert_starts(shape, &[(0, start)])?,
            None => self.insert_start(start)?,
        };
        if inserted == 0 {
            return self.duplicate_outcome(start);
        }
        self.insert_attributes(start)?;
        match &start.state {
            State::Queued { .. } if !start.has_begun => self.insert_ready(start)?,
            state => self.insert_role_rows(start.key, state)?,
        }
        Ok(Outcome::Applied)
    }

    /// Merges a debounced Start into the scheduled execution with the same `dedup_id`. Returns `None` if there is no
    /// such execution.
    fn merge_debounced(&mut self, start: &Start) -> DbResult<Option<Outcome>> {
        let (Some(debounce_window), State::Scheduled { due_at }) = (start.debounce_window, &start.state)
        else {
            return Ok(None);
        };
        // the Start may have been sent before, in a flush with another number: its own execution may exist
        if self.find_existing(start)?.is_some() {
            return Ok(None);
        }
        let placement = start.placement.as_deref();
        let (queue, dedup_id) = (placement.map(|placement| &*placement.queue), start.dedup_id.as_deref());
        self.pieces.delete_referenced(&mut self.sql, Sql::DebouncedInput, (queue, dedup_id))?;
        let pending_count = self.pieces.pending_count();
        let input = self.pieces.column_value(&mut self.sql, &start.input)?;
        let params = params![
            queue,
            dedup_id,
            input.bytes(),
            placement.map(|placement| &*placement.key).filter(|key| !key.is_empty()),
            placement.map(|placement| placement.priority).filter(|priority| *priority != 0),
            start.app_version.as_deref(),
            start.run_timeout.map(stored_millis),
        ];
        let found = self
            .sql
            .get(Sql::UpdateDebounced)?
            .query_row(params, |row| Ok(parse_existing_row(row)))
            .optional()?;
        let Some((other, created_at)) = found.transpose()? else {
            self.pieces.discard_pending(pending_count);
            return Ok(None);
        };
        self.sql.counts.updated[Table::Executions as usize] += 1;
        let due_at = (*due_at).min(Timestamp::from_micros(created_at).plus(debounce_window));
        self.sql.run(Sql::PostponeTimer, (key_bytes(&other.key), due_at.as_micros()))?;
        Ok(Some(Outcome::Duplicate(Box::new(other))))
    }

    fn insert_start(&mut self, start: &Start) -> DbResult<u64> {
        let state = &start.state;
        let pending_count = self.pieces.pending_count();
        let outcome = match state.outcome() {
            Some(outcome) => self.pieces.column_value(&mut self.sql, outcome)?,
            None => ColumnValue::Inline(None),
        };
        let input = self.pieces.column_value(&mut self.sql, &start.input)?;
        let owner = matches!(state, State::Running { .. }).then_some(self.flush.worker.0);
        let placement = start.placement.as_deref();
        let params = params![
            key_bytes(&start.key),
            (start.root != start.key).then(|| key_bytes(&start.root)),
            start.parent.as_ref().map(|parent| key_bytes(&parent.key)),
            start.parent.as_ref().is_some_and(|parent| parent.is_detached),
            start.workflow_id.as_deref(),
            &*start.workflow,
            start.fingerprint.map(|fingerprint| fingerprint as i64),
            state.status() as i64,
            state.is_parked(),
            owner,
            start.created_at.as_micros(),
            state.ended_at().map(Timestamp::as_micros),
            start.deadline_at.map(Timestamp::as_micros),
            state.encoded_sleeps(),
            input.bytes(),
            outcome.bytes(),
            start.app_version.as_deref(),
            placement.map(|placement| &*placement.queue),
            placement.map(|placement| &*placement.key).filter(|key| !key.is_empty()),
            placement.map(|placement| placement.priority).filter(|priority| *priority != 0),
            start.active_dedup_id().map(|dedup_id| &**dedup_id),
            start.run_timeout.map(stored_millis),
        ];
        let rows = self.sql.insert(Table::Executions, Sql::Start, params)?;
        if rows == 0 {
            self.pieces.discard_pending(pending_count);
        }
        Ok(rows)
    }

    fn insert_attributes(&mut self, start: &Start) -> DbResult<()> {
        for (name, value) in start.attributes.iter() {
            self.sql.insert(Table::Attributes, Sql::InsertAttribute, (key_bytes(&start.key), name, value))?;
        }
        Ok(())
    }

    /// Makes a new execution ready.
    fn insert_ready(&mut self, start: &Start) -> DbResult<()> {
        let seq = self.share.next_seq(self.now);
        let placement = start.placement.as_deref();
        let params = (
            key_bytes(&start.key),
            seq,
            &*start.workflow,
            start.app_version.as_deref(),
            placement.map_or(DEFAULT_QUEUE, |placement| &*placement.queue),
            placement.map_or("", |placement| &*placement.key),
            placement.map_or(0, |placement| placement.priority),
        );
        self.sql.insert(Table::Ready, Sql::InsertReady, params)?;
        Ok(())
    }
}
