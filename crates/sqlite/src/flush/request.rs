//! Cancel, expire, resume and pause: a [`Request`] takes effect at once, unless the execution is running. Then its owner
//! handles the request.

use rusqlite::OptionalExtension;
use stepfast_core::Payload;
use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    Outcome, Request, RequestKind, RequestResult, Status, UNKNOWN_STATUS_MESSAGE, continues_in_place,
};

use crate::conn::statements::Sql;
use crate::error::DbResult;
use crate::flush::apply::FlushApplier;
use crate::rows::{blob, key_bytes, key_of, optional_time, status_of};

/// The state of a request's execution.
struct RequestTarget {
    status: Status,
    /// Whether this version supports the stored status. If not, `status` is `Queued`, as for a parked execution.
    has_known_status: bool,
    is_parked: bool,
    parent: Option<Key>,
    deadline_at: Option<stepfast_core::clock::Timestamp>,
}

impl FlushApplier<'_, '_> {
    pub(crate) fn apply_request(&mut self, request: &Request) -> DbResult<Outcome> {
        let Some(target) = self.read_target(request.execution)? else { return Ok(Outcome::NotFound) };
        if !target.has_known_status {
            return Ok(Outcome::Rejected(UNKNOWN_STATUS_MESSAGE.into()));
        }
        let has_pause = request.kind == RequestKind::Resume
            && self.sql.exists(Sql::HasPauseRequest, [key_bytes(&request.execution)])?;
        let result = request.decide(target.status, target.is_parked, target.deadline_at, has_pause);
        match request.kind {
            _ if matches!(result, RequestResult::NotApplicable(_)) => {}
            RequestKind::Cancel | RequestKind::Expire => self.cancel_tree(request, target.status)?,
            RequestKind::Resume if !continues_in_place(target.status, target.is_parked) => {
                self.sql.delete(Table::Requests, Sql::DeletePauses, [key_bytes(&request.execution)])?;
            }
            RequestKind::Resume => self.resume(request.execution, &target)?,
            RequestKind::CancelItem(_) => self.insert_request(request, request.execution)?,
            RequestKind::Pause if target.status == Status::Running => {
                self.insert_request(request, request.execution)?;
            }
            RequestKind::Pause if target.is_parked => {}
            RequestKind::Pause => self.park(request)?,
        }
        Ok(request.outcome(result, target.parent))
    }

    fn read_target(&mut self, id: Key) -> DbResult<Option<RequestTarget>> {
        let statement = self.sql.get(Sql::RequestTarget)?;
        let found = statement.query_row([key_bytes(&id)], |row| {
            let read = || -> DbResult<RequestTarget> {
                let status = status_of(row, 0)?;
                Ok(RequestTarget {
                    status: status.unwrap_or(Status::Queued),
                    has_known_status: status.is_some(),
                    is_parked: row.get(1)?,
                    parent: blob(row, 2)?.is_some().then(|| key_of(row, 2)).transpose()?,
                    deadline_at: optional_time(row, 3)?,
                })
            };
            Ok(read())
        });
        found.optional()?.transpose()
    }

    /// Cancels an execution and its unfinished awaited children at any depth, in one transaction, so that no child can
    /// be started in between.
    fn cancel_tree(&mut self, request: &Request, status: Status) -> DbResult<()> {
        let mut unfinished = vec![(request.execution, status)];
        while let Some((id, status)) = unfinished.pop() {
            if status == Status::Running {
                self.insert_request(request, id)?;
            } else {
                self.finish_as_cancelled(request, id)?;
            }
            let mut children =
                self.sql.get(Sql::UnfinishedChildren)?.query([key_bytes(&id)])?.mapped(|row| {
                    let read =
                        || -> DbResult<(Key, Option<Status>)> { Ok((key_of(row, 0)?, status_of(row, 1)?)) };
                    Ok(read())
                });
            children.try_for_each(|child| -> DbResult<()> {
                let (key, status) = child??;
                // no request changes an execution whose status this version does not support
                unfinished.extend(status.map(|status| (key, status)));
                Ok(())
            })?;
        }
        Ok(())
    }

    fn insert_request(&mut self, request: &Request, id: Key) -> DbResult<()> {
        let kind = request.recorded_kind().number();
        let params = (key_bytes(&id), key_bytes(&request.id), kind, request.at.as_micros());
        self.sql.insert(Table::Requests, Sql::InsertRequest, params)?;
        self.note_request();
        Ok(())
    }

    fn finish_as_cancelled(&mut self, request: &Request, id: Key) -> DbResult<()> {
        self.pieces.delete_referenced(&mut self.sql, Sql::StoredOutcome, [key_bytes(&id)])?;
        let reason = self.pieces.column_value(&mut self.sql, &request.reason)?;
        let params = (key_bytes(&id), reason.bytes(), request.at.as_micros());
        self.sql.update(Table::Executions, Sql::Cancel, params)?;
        self.delete_wake_conditions(id)?;
        if id.is_batch() {
            self.sql.delete(Table::Batches, Sql::DeleteBatch, [key_bytes(&id)])?;
        }
        self.sql.delete(Table::Requests, Sql::ClearRequests, [key_bytes(&id)])?;
        Ok(())
    }

    /// Parks an execution that no worker runs.
    fn park(&mut self, request: &Request) -> DbResult<()> {
        let reason = self.pieces.column_value(&mut self.sql, &request.reason)?;
        let params = (key_bytes(&request.execution), reason.bytes());
        self.sql.update(Table::Executions, Sql::Park, params)?;
        self.sql.delete(Table::Requests, Sql::DeletePauses, [key_bytes(&request.execution)])?;
        self.delete_wake_conditions(request.execution)
    }

    /// Deletes the rows by which an execution that does not run would continue.
    fn delete_wake_conditions(&mut self, id: Key) -> DbResult<()> {
        self.sql.delete(Table::Ready, Sql::DeleteReady, [key_bytes(&id)])?;
        self.sql.run(Sql::DeleteQuarantine, [key_bytes(&id)])?;
        self.sql.delete(Table::Timers, Sql::DeleteTimer, [key_bytes(&id)])?;
        self.sql.delete(Table::Waits, Sql::DeleteWaits, [key_bytes(&id)])?;
        Ok(())
    }

    /// Deletes the failures of steps at the end of the record, so that those steps run again. Also deletes their
    /// attempts, and the checkpoints of calls that were abandoned later.
    fn retract_failures(&mut self, id: Key) -> DbResult<()> {
        let order: Option<i64> =
            self.sql.get(Sql::TrailingFailures)?.query_row([key_bytes(&id)], |row| row.get(0))?;
        if let Some(order) = order {
            self.pieces.delete_referenced(&mut self.sql, Sql::RetractAttempts, (key_bytes(&id), order))?;
            let retracted = self.pieces.delete_referenced(
                &mut self.sql,
                Sql::RetractFailures,
                (key_bytes(&id), order),
            )?;
            self.sql.counts.deleted[Table::Checkpoints as usize] += retracted;
        }
        Ok(())
    }

    /// Deletes the chunks of the outcome that a resume clears, and those of the failures that it retracts.
    fn delete_resumed_chunks(&mut self, id: Key, is_failed: bool) -> DbResult<()> {
        let order: Option<i64> = if is_failed {
            self.sql.get(Sql::TrailingFailures)?.query_row([key_bytes(&id)], |row| row.get(0))?
        } else {
            None
        };
        let mut values = Vec::new();
        let mut rows =
            self.sql.get(Sql::ChunkedOutcomes)?.query((key_bytes(&id), order.unwrap_or(i64::MAX)))?;
        while let Some(row) = rows.next()? {
            let outcome = blob(row, 0)?.map(Payload::from_slice);
            values.extend(outcome.and_then(|outcome| outcome.chunk_ref()).map(|chunks| chunks.value));
        }
        drop(rows);
        for value in values {
            self.sql.delete(Table::Chunks, Sql::DeleteChunks, (key_bytes(&id), value as i64))?;
        }
        Ok(())
    }

    fn resume(&mut self, id: Key, target: &RequestTarget) -> DbResult<()> {
        self.delete_resumed_chunks(id, target.status == Status::Failed)?;
        self.pieces.delete_referenced(&mut self.sql, Sql::StoredOutcome, [key_bytes(&id)])?;
        self.sql.update(Table::Executions, Sql::Resume, (key_bytes(&id), i64::from(!target.is_parked)))?;
        self.sql.delete(Table::Requests, Sql::DeletePauses, [key_bytes(&id)])?;
        if target.status == Status::Failed {
            self.retract_failures(id)?;
        }
        self.insert_ready_resumed(id, false)
    }
}
