//! Resolves the outcomes of Starts that were not inserted, and of a flush that is sent again because its COMMIT had no
//! reply.
//!
//! A flush is applied completely or not at all, so one row that it inserted proves the whole flush. A flush records its
//! number if it inserts no such row, or if a temporary obstacle may reject one of its Starts.

use rusqlite::OptionalExtension;
use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    ExistingExecution, Flush, Outcome, Request, Start, State, Status, UNKNOWN_STATUS_MESSAGE, Write,
};

use crate::conn::statements::Sql;
use crate::error::{DbError, DbResult};
use crate::flush::apply::FlushApplier;
use crate::rows::{key_bytes, parse_existing_row};

impl FlushApplier<'_, '_> {
    /// Returns the outcome of a Start whose queue is full.
    pub(super) fn outcome_if_full(&mut self, start: &Start) -> DbResult<Outcome> {
        if let Some((existing, _)) = self.find_existing(start)? {
            return Ok(Outcome::Duplicate(Box::new(existing)));
        }
        let other = if start.dedup_id.is_some() { self.find_deduplicated(start)? } else { None };
        Ok(other.map_or(Outcome::Full, |other| Outcome::Deduplicated(Some(other))))
    }

    /// Returns the outcome of a Start that was not inserted because another execution has its key, id or `dedup_id`.
    pub(crate) fn duplicate_outcome(&mut self, start: &Start) -> DbResult<Outcome> {
        match self.find_existing(start)? {
            Some((existing, _)) => Ok(Outcome::Duplicate(Box::new(existing))),
            None if start.dedup_id.is_some() => Ok(Outcome::Deduplicated(self.find_deduplicated(start)?)),
            None => Err(DbError::corrupt("table executions rejects a key that it does not contain")),
        }
    }

    /// Finds the execution that has a Start's key or workflow_id, and its creation time.
    pub(crate) fn find_existing(&mut self, start: &Start) -> DbResult<Option<(ExistingExecution, i64)>> {
        let statement = self.sql.get(Sql::ExistingByKey)?;
        if let Some(found) =
            statement.query_row([key_bytes(&start.key)], |row| Ok(parse_existing_row(row))).optional()?
        {
            return found.map(Some);
        }
        let Some(workflow_id) = start.workflow_id.as_deref() else { return Ok(None) };
        let statement = self.sql.get(Sql::ExistingById)?;
        statement.query_row([workflow_id], |row| Ok(parse_existing_row(row))).optional()?.transpose()
    }

    /// Finds the execution that has a Start's `dedup_id`.
    fn find_deduplicated(&mut self, start: &Start) -> DbResult<Option<Box<ExistingExecution>>> {
        let queue = start.placement.as_deref().map(|placement| &*placement.queue);
        let statement = self.sql.get(Sql::ExistingByDedupId)?;
        let params = (queue, start.dedup_id.as_deref());
        let found = statement.query_row(params, |row| Ok(parse_existing_row(row))).optional()?.transpose()?;
        Ok(found.map(|(existing, _)| Box::new(existing)))
    }

    /// Applies a flush that was sent again, unless it was applied before. Returns the outcomes other than `Applied`, by
    /// index.
    pub(crate) fn resolve_resent_flush(&mut self) -> DbResult<Vec<(usize, Outcome)>> {
        if !self.was_applied()? {
            return self.apply_all();
        }
        let flush = self.flush;
        let all = flush.writes.iter().enumerate();
        let found = all.map(|(i, write)| Ok((i, self.read_outcome(write)?))).collect::<DbResult<Vec<_>>>()?;
        Ok(found.into_iter().filter(|(_, outcome)| *outcome != Outcome::Applied).collect())
    }

    /// Records the number of the flush if none of its inserted rows proves that the flush was applied, or if a
    /// temporary obstacle may reject one of its Starts.
    pub(crate) fn record_flush_number(&mut self) -> DbResult<()> {
        let inserted = |table: Table| self.sql.counts.inserted[table as usize] > 0;
        let flush = self.flush;
        let has_proof = self.has_proving_start || inserted(Table::Checkpoints) || inserted(Table::Attempts);
        if !has_proof || can_lose_temporarily(flush) {
            self.sql.run(Sql::SetFlushNumber, (flush.worker.0, flush.lane, flush.number))?;
        }
        Ok(())
    }

    /// Whether the flush was applied.
    ///
    /// A missing row proves that the flush was not applied. An existing row proves less: the row of a Start that was
    /// staged again may come from an earlier flush.
    fn was_applied(&mut self) -> DbResult<bool> {
        let flush = self.flush;
        if self.sql.exists(Sql::HasFlushNumber, (flush.worker.0, flush.lane, flush.number))? {
            return Ok(true);
        }
        if can_lose_temporarily(flush) {
            // such a flush always records its number, because the missing row of a rejected Start proves nothing
            return Ok(false);
        }
        let mut is_proven = false;
        for write in &flush.writes {
            let is_equal = match write {
                // if another execution has the key or id, the Start is a duplicate, whether the flush was applied or
                // not
                Write::Start(start) => self.find_existing(start)?.map(|(existing, created_at)| {
                    existing.key == start.key && created_at == start.created_at.as_micros()
                }),
                Write::Checkpoint(checkpoint) => self.compare_checkpoint(checkpoint)?,
                Write::Attempt(attempt) => self.compare_attempt(attempt)?,
                _ => continue,
            };
            match is_equal {
                None => return Ok(false),
                Some(is_equal) => is_proven |= is_equal && proves_flush(write),
            }
        }
        Ok(is_proven)
    }

    /// Whether the flush's worker runs the execution, and the execution began without a claim.
    fn is_owned_by_worker(&mut self, id: Key) -> DbResult<bool> {
        let worker = self.flush.worker.0;
        Ok(self.read_target(id)?.is_some_and(|target| target.owner == Some(worker)))
    }

    /// Reads the outcome of a Write from its rows, after the flush was applied.
    fn read_outcome(&mut self, write: &Write) -> DbResult<Outcome> {
        Ok(match write {
            Write::Start(start) => match self.find_existing(start)? {
                Some((existing, created_at))
                    if existing.key != start.key || created_at != start.created_at.as_micros() =>
                {
                    Outcome::Duplicate(Box::new(existing))
                }
                None if start.dedup_id.is_some() => match self.duplicate_outcome(start)? {
                    Outcome::Deduplicated(Some(other)) if start.debounce_window.is_some() => {
                        Outcome::Duplicate(other)
                    }
                    outcome => outcome,
                },
                None if start.waiting_placement().is_some() => Outcome::Full,
                // the Start was queued, unless this worker runs the execution without a claim
                Some(_) if start.self_claims && !self.is_owned_by_worker(start.key)? => Outcome::Queued,
                _ => Outcome::Applied,
            },
            Write::Transition(transition) => match (&transition.state, self.read_target(transition.key)?) {
                (_, None) => Outcome::NotFound,
                (State::Ended { status, at, .. }, Some(target))
                    if *status != Status::Cancelled
                        && target.status == Status::Cancelled
                        && target.ended_at == Some(*at) =>
                {
                    Outcome::Cancelled
                }
                (State::Ended { status, at, .. }, Some(target))
                    if target.status != *status || target.ended_at != Some(*at) =>
                {
                    Outcome::NotFound
                }
                // the execution may have changed after the flush
                _ => Outcome::Applied,
            },
            Write::Wake(id) => match self.read_target(*id)? {
                Some(target) if target.status != Status::Waiting => Outcome::Applied,
                _ => Outcome::NotFound,
            },
            Write::Request(request) => self.read_request_outcome(request)?,
            Write::Checkpoint(_)
            | Write::Attempt(_)
            | Write::ClearRequests(_)
            | Write::Chunk(_)
            | Write::DeleteChunks(_) => Outcome::Applied,
        })
    }

    /// Reads the outcome of a request from the row of its execution, after the flush was applied.
    fn read_request_outcome(&mut self, request: &Request) -> DbResult<Outcome> {
        let Some(target) = self.read_target(request.execution)? else { return Ok(Outcome::NotFound) };
        if !target.has_known_status {
            return Ok(Outcome::Rejected(UNKNOWN_STATUS_MESSAGE.into()));
        }
        let is_from_request = target.status == Status::Cancelled && target.ended_at == Some(request.at);
        let is_pending = self
            .sql
            .exists(Sql::HasRequestWithId, (key_bytes(&request.execution), key_bytes(&request.id)))?;
        let result = request.infer_result(target.status, is_from_request, is_pending);
        Ok(request.outcome(result, target.parent))
    }
}

/// Whether only this flush can have inserted the row of this Write. A queued Start of a caller proves nothing, because
/// such a Start is staged again when the registration ends.
pub(crate) fn proves_flush(write: &Write) -> bool {
    match write {
        Write::Start(start) => is_staged_once(start),
        Write::Checkpoint(_) | Write::Attempt(_) => true,
        _ => false,
    }
}

/// Whether a Start cannot have been staged under an earlier registration.
pub(crate) fn is_staged_once(start: &Start) -> bool {
    start.parent.is_some() || !matches!(start.state, State::Queued { .. } | State::Scheduled { .. })
}

/// Whether a temporary obstacle may reject a Start of the flush: another execution with the same `dedup_id`, or a full
/// queue.
fn can_lose_temporarily(flush: &Flush) -> bool {
    let can_lose = |start: &Start| {
        start.dedup_id.is_some() || start.waiting_placement().is_some() && start.can_be_rejected()
    };
    flush.writes.iter().any(|write| matches!(write, Write::Start(start) if can_lose(start)))
}
