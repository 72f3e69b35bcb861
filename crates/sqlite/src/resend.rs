//! What became of a flush whose COMMIT nobody saw return. A flush is all or nothing, so one row of it tells,
//! and no number has to be written per flush.

use stepfast_core::record::Status;
use stepfast_core::write::{Answer, Outcome, Request, RequestKind, State, Write};

use crate::apply::Apply;
use crate::error::Tried;
use crate::row::key;
use crate::statements::Sql;

impl Apply<'_, '_> {
    /// Finds out whether the flush was applied; applies it if not.
    pub(crate) fn again(&mut self) -> Tried<Vec<(usize, Outcome)>> {
        let flush = self.flush;
        let found = match self.was_applied()? {
            Some(true) => {
                let all = flush.writes.iter().enumerate();
                all.map(|(i, write)| Ok((i, self.outcome(write)?))).collect::<Tried<Vec<_>>>()?
            }
            Some(false) => return self.all(),
            None => {
                // nothing in it proves anything, so applying it again changes nothing that it has changed;
                // only a Move that did land would now look as if it were not ours
                let mut found = self.all()?;
                for (i, outcome) in &mut found {
                    if let (write @ Write::Move(_), Outcome::NotFound) = (&flush.writes[*i], &*outcome) {
                        *outcome = self.outcome(write)?;
                    }
                }
                found
            }
        };
        Ok(found.into_iter().filter(|(_, outcome)| *outcome != Outcome::Applied).collect())
    }

    /// Looks for one Write whose row proves that the flush was applied, or that it was not.
    fn was_applied(&mut self) -> Tried<Option<bool>> {
        let flush = self.flush;
        for write in &flush.writes {
            let proof = match write {
                // its key cannot be there unless it was applied, except when it has lost
                Write::Start(start) => match self.find_existing(start)? {
                    Some((existing, created_at)) => (existing.key == start.key
                        && created_at == start.created_at.as_micros())
                    .then_some(true),
                    None => Some(false),
                },
                Write::Checkpoint(checkpoint) => match self.has_checkpoint(checkpoint)? {
                    Some(true) => Some(true),
                    Some(false) => None,
                    None => Some(false),
                },
                Write::Attempt(attempt) => match self.has_attempt(attempt)? {
                    Some(true) => Some(true),
                    Some(false) => None,
                    None => Some(false),
                },
                // numbers of values are random
                Write::Chunk(chunk) => {
                    let params = (key(&chunk.execution), chunk.value as i64, chunk.n);
                    Some(self.sql.exists(Sql::HasChunk, params)?)
                }
                Write::Move(change) => match (&change.state, self.target(change.key)?) {
                    (State::Ended { status, at, .. }, Some(target)) => {
                        if target.status == *status && target.ended_at == Some(*at) {
                            Some(true)
                        } else {
                            (target.owner == Some(flush.worker.0)).then_some(false)
                        }
                    }
                    _ => None,
                },
                Write::Request(request) => self.shows(request)?.then_some(true),
                Write::Wake(_) | Write::Answer(_) | Write::Discard(_) => None,
            };
            if proof.is_some() {
                return Ok(proof);
            }
        }
        Ok(None)
    }

    /// The outcome of a Write of a flush that was applied, read from its rows.
    fn outcome(&mut self, write: &Write) -> Tried<Outcome> {
        Ok(match write {
            Write::Start(start) => match self.find_existing(start)? {
                Some((existing, created_at))
                    if existing.key != start.key || created_at != start.created_at.as_micros() =>
                {
                    Outcome::Duplicate(Box::new(existing))
                }
                _ => Outcome::Applied,
            },
            Write::Move(change) => match (&change.state, self.target(change.key)?) {
                (_, None) => Outcome::NotFound,
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
            | Write::Answer(_)
            | Write::Chunk(_)
            | Write::Discard(_) => Outcome::Applied,
        })
    }

    /// True if a request has left its mark.
    fn shows(&mut self, request: &Request) -> Tried<bool> {
        if self.sql.exists(Sql::HasRequest, (key(&request.execution), key(&request.n)))? {
            return Ok(true);
        }
        let target = self.target(request.execution)?;
        Ok(request.kind == RequestKind::Cancel
            && target.is_some_and(|target| {
                target.status == Status::Cancelled && target.ended_at == Some(request.at)
            }))
    }

    fn answered(&mut self, request: &Request) -> Tried<Outcome> {
        let Some(target) = self.target(request.execution)? else { return Ok(Outcome::NotFound) };
        let is_mine = target.status == Status::Cancelled && target.ended_at == Some(request.at);
        Ok(match request.kind {
            RequestKind::Cancel if is_mine => Outcome::Answered(Answer::Done, target.parent),
            RequestKind::Cancel if target.status.is_terminal() => {
                Outcome::Answered(Answer::Declined(target.status), None)
            }
            RequestKind::Cancel => Outcome::Answered(Answer::Requested, None),
            RequestKind::Resume if target.status == Status::Completed => {
                Outcome::Answered(Answer::Declined(target.status), None)
            }
            RequestKind::Resume => Outcome::Answered(Answer::Done, None),
        })
    }
}
