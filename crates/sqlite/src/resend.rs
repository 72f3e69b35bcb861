//! What became of a flush whose COMMIT nobody saw return. A flush is all or nothing, so one row of it tells,
//! and no number has to be written per flush.

use stepfast_core::record::Status;
use stepfast_core::write::{Answer, Move, Outcome, Request, RequestKind, State, Write};

use crate::apply::Apply;
use crate::error::Tried;
use crate::row::key;
use crate::statements::Sql;

/// What a row tells about the flush that would have made it.
enum Evidence {
    /// It is there.
    There,
    /// It is not there, and would be.
    Missing,
    /// It is as before, but may have become so again.
    NotYet,
    /// Nothing.
    None,
}

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
                    let write = &flush.writes[*i];
                    // one that went on running would still be ours
                    let stays = matches!(write, Write::Move(Move { state: State::Running { .. }, .. }));
                    if matches!((write, &*outcome), (Write::Move(_), Outcome::NotFound)) && !stays {
                        *outcome = self.outcome(write)?;
                    }
                }
                found
            }
        };
        Ok(found.into_iter().filter(|(_, outcome)| *outcome != Outcome::Applied).collect())
    }

    /// Looks for Writes whose rows prove that the flush was applied, or that it was not.
    ///
    /// A row that would be there tells for certain that it was not. One that is there tells less: free Writes
    /// are staged again by a worker that was fenced, so an earlier flush may have made it.
    fn was_applied(&mut self) -> Tried<Option<bool>> {
        let mut proof = None;
        for write in &self.flush.writes {
            match self.evidence(write)? {
                Evidence::Missing => return Ok(Some(false)),
                Evidence::There => proof = Some(true),
                Evidence::NotYet => proof = proof.or(Some(false)),
                Evidence::None => {}
            }
        }
        Ok(proof)
    }

    /// What the rows of a Write tell about its flush.
    fn evidence(&mut self, write: &Write) -> Tried<Evidence> {
        let same_or_missing = |found: Option<bool>| match found {
            Some(true) => Evidence::There,
            Some(false) => Evidence::None,
            None => Evidence::Missing,
        };
        Ok(match write {
            Write::Start(start) => {
                same_or_missing(self.find_existing(start)?.map(|(existing, created_at)| {
                    existing.key == start.key && created_at == start.created_at.as_micros()
                }))
            }
            Write::Checkpoint(checkpoint) => same_or_missing(self.has_checkpoint(checkpoint)?),
            Write::Attempt(attempt) => same_or_missing(self.has_attempt(attempt)?),
            Write::Chunk(chunk) => {
                let params = (key(&chunk.execution), chunk.value as i64, chunk.n);
                if self.sql.exists(Sql::HasChunk, params)? { Evidence::None } else { Evidence::Missing }
            }
            Write::Move(change) => match (&change.state, self.target(change.key)?) {
                (State::Ended { status, at, .. }, Some(target)) => {
                    if target.status == *status && target.ended_at == Some(*at) {
                        Evidence::There
                    } else if target.owner == Some(self.flush.worker.0) {
                        Evidence::NotYet
                    } else {
                        Evidence::None
                    }
                }
                _ => Evidence::None,
            },
            Write::Request(request) => {
                if self.shows(request)? {
                    Evidence::There
                } else {
                    Evidence::None
                }
            }
            Write::Wake(_) | Write::Answer(_) | Write::Discard(_) => Evidence::None,
        })
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
