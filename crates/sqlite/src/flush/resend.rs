//! What became of a flush whose COMMIT nobody saw return. A flush is all or nothing, so one row that it has
//! inserted tells. Only a flush that inserts no such row writes its number.

use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    RequestResult, Flush, Outcome, Request, RequestKind, Start, State, Status, UNKNOWN_STATUS_MESSAGE, Write,
};

use crate::conn::statements::Sql;
use crate::error::DbResult;
use crate::flush::apply::Apply;

impl Apply<'_, '_> {
    /// Finds out whether the flush was applied; applies it if not.
    pub(crate) fn again(&mut self) -> DbResult<Vec<(usize, Outcome)>> {
        if !self.was_applied()? {
            return self.all();
        }
        let flush = self.flush;
        let all = flush.writes.iter().enumerate();
        let found = all.map(|(i, write)| Ok((i, self.outcome(write)?))).collect::<DbResult<Vec<_>>>()?;
        Ok(found.into_iter().filter(|(_, outcome)| *outcome != Outcome::Applied).collect())
    }

    /// Writes the flush's number, if none of the rows it has inserted proves it.
    pub(crate) fn leave_proof(&mut self) -> DbResult<()> {
        let inserted = |table: Table| self.sql.tally.inserted[table as usize] > 0;
        let flush = self.flush;
        let has_proof = self.has_started || inserted(Table::Checkpoints) || inserted(Table::Attempts);
        if !has_proof || has_passing_losers(flush) {
            self.sql.run(Sql::SetNumber, (flush.worker.0, flush.lane, flush.number))?;
        }
        Ok(())
    }

    /// Whether the flush was applied.
    ///
    /// A row that is missing tells for certain that it was not. One that is there tells less: an earlier flush may have made
    /// that of a Start which was staged again.
    fn was_applied(&mut self) -> DbResult<bool> {
        let flush = self.flush;
        if self.sql.exists(Sql::HasNumber, (flush.worker.0, flush.lane, flush.number))? {
            return Ok(true);
        }
        if has_passing_losers(flush) {
            // what a Start has lost against may have gone since
            return Ok(false);
        }
        let mut is_proved = false;
        for write in &flush.writes {
            let is_there = match write {
                // where another one is there, it has lost, then or now
                Write::Start(start) => self.find_existing(start)?.map(|(existing, created_at)| {
                    existing.key == start.key && created_at == start.created_at.as_micros()
                }),
                Write::Checkpoint(checkpoint) => self.has_checkpoint(checkpoint)?,
                Write::Attempt(attempt) => self.has_attempt(attempt)?,
                _ => continue,
            };
            match is_there {
                None => return Ok(false),
                Some(is_there) => is_proved |= is_there && is_proof(write),
            }
        }
        Ok(is_proved)
    }

    fn runs_here(&mut self, id: Key) -> DbResult<bool> {
        let worker = self.flush.worker.0;
        Ok(self.target(id)?.is_some_and(|target| target.owner == Some(worker)))
    }

    /// The outcome of a Write of a flush that was applied, read from its rows.
    fn outcome(&mut self, write: &Write) -> DbResult<Outcome> {
        Ok(match write {
            Write::Start(start) => match self.find_existing(start)? {
                Some((existing, created_at))
                    if existing.key != start.key || created_at != start.created_at.as_micros() =>
                {
                    Outcome::Duplicate(Box::new(existing))
                }
                None if start.dedup_id.is_some() => match self.existing(start)? {
                    Outcome::Deduplicated(Some(other)) if start.debounce_window.is_some() => {
                        Outcome::Duplicate(other)
                    }
                    outcome => outcome,
                },
                None if start.waiting_placement().is_some() => Outcome::Full,
                // it has begun, or somebody has claimed it meanwhile, who runs it
                Some(_) if start.self_claims && !self.runs_here(start.key)? => Outcome::Queued,
                _ => Outcome::Applied,
            },
            Write::Transition(change) => match (&change.state, self.target(change.key)?) {
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
                // it may have gone on since
                _ => Outcome::Applied,
            },
            Write::Wake(id) => match self.target(*id)? {
                Some(target) if target.status != Status::Waiting => Outcome::Applied,
                _ => Outcome::NotFound,
            },
            Write::Request(request) => self.answered(request)?,
            Write::Checkpoint(_)
            | Write::Attempt(_)
            | Write::ClearRequests(_)
            | Write::Chunk(_)
            | Write::DeleteChunks(_) => Outcome::Applied,
        })
    }

    fn answered(&mut self, request: &Request) -> DbResult<Outcome> {
        let Some(target) = self.target(request.execution)? else { return Ok(Outcome::NotFound) };
        if !target.has_known_status {
            return Ok(Outcome::Rejected(UNKNOWN_STATUS_MESSAGE.into()));
        }
        let is_mine = target.status == Status::Cancelled && target.ended_at == Some(request.at);
        Ok(match request.kind {
            RequestKind::Cancel | RequestKind::Expire if is_mine => {
                Outcome::RequestHandled(RequestResult::Done, target.parent)
            }
            RequestKind::Cancel if target.status.is_terminal() => {
                Outcome::RequestHandled(RequestResult::NotApplicable(target.status), None)
            }
            RequestKind::Cancel => Outcome::RequestHandled(RequestResult::Pending, None),
            RequestKind::Expire => Outcome::RequestHandled(RequestResult::NotApplicable(target.status), None),
            RequestKind::Resume if target.status == Status::Completed => {
                Outcome::RequestHandled(RequestResult::NotApplicable(target.status), None)
            }
            RequestKind::Resume => Outcome::RequestHandled(RequestResult::Done, None),
        })
    }
}

/// True if no other flush can have inserted the row of this Write. A caller's Start whose registration is over is staged again,
/// and then it is queued.
pub(crate) fn is_proof(write: &Write) -> bool {
    match write {
        Write::Start(start) => is_first_try(start),
        Write::Checkpoint(_) | Write::Attempt(_) => true,
        _ => false,
    }
}

/// True if a Start cannot have been staged before under an earlier registration.
pub(crate) fn is_first_try(start: &Start) -> bool {
    start.parent.is_some() || !matches!(start.state, State::Queued { .. } | State::Scheduled { .. })
}

/// True if a Start may lose against something that passes: another's dedup_id, or a full queue.
fn has_passing_losers(flush: &Flush) -> bool {
    let may_lose =
        |start: &Start| start.dedup_id.is_some() || start.waiting_placement().is_some() && start.can_be_rejected();
    flush.writes.iter().any(|write| matches!(write, Write::Start(start) if may_lose(start)))
}
