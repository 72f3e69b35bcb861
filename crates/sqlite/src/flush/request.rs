//! Cancel and resume: what a [`Request`] does at once, and what it leaves to the owner.

use rusqlite::OptionalExtension;
use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{RequestResult, Outcome, Request, RequestKind, Status, UNKNOWN_STATUS_MESSAGE};

use crate::conn::statements::Sql;
use crate::error::DbResult;
use crate::flush::apply::Apply;
use crate::rows::{blob, key, key_of, maybe_time, status_of};

/// What a request needs to know of its target.
pub(crate) struct Target {
    pub(crate) status: Status,
    /// True if its status is one that this version knows; else it passes for queued, as a parked execution is.
    pub(crate) has_known_status: bool,
    pub(crate) is_paused: bool,
    pub(crate) parent: Option<Key>,
    pub(crate) ended_at: Option<stepfast_core::clock::Timestamp>,
    /// Who runs it, if that began without a claim.
    pub(crate) owner: Option<i64>,
    pub(crate) deadline_at: Option<stepfast_core::clock::Timestamp>,
}

impl Apply<'_, '_> {
    pub(crate) fn request(&mut self, request: &Request) -> DbResult<Outcome> {
        let Some(target) = self.target(request.execution)? else { return Ok(Outcome::NotFound) };
        if !target.has_known_status {
            return Ok(Outcome::Rejected(UNKNOWN_STATUS_MESSAGE.into()));
        }
        match request.kind {
            RequestKind::Cancel => self.cancel(request, &target),
            RequestKind::Expire => {
                let has_expired = target.deadline_at.is_some_and(|at| at <= request.at);
                if has_expired && target.status != Status::Running {
                    self.cancel(request, &target)
                } else {
                    Ok(Outcome::RequestHandled(RequestResult::NotApplicable(target.status), None))
                }
            }
            RequestKind::Resume => self.resume(request.execution, &target),
        }
    }

    pub(crate) fn target(&mut self, id: Key) -> DbResult<Option<Target>> {
        let statement = self.sql.get(Sql::Status)?;
        let found = statement.query_row([key(&id)], |row| {
            let read = || -> DbResult<Target> {
                let status = status_of(row, 0)?;
                Ok(Target {
                    status: status.unwrap_or(Status::Queued),
                    has_known_status: status.is_some(),
                    is_paused: row.get(1)?,
                    parent: blob(row, 2)?.is_some().then(|| key_of(row, 2)).transpose()?,
                    ended_at: maybe_time(row, 3)?,
                    owner: row.get(4)?,
                    deadline_at: maybe_time(row, 5)?,
                })
            };
            Ok(read())
        });
        found.optional()?.transpose()
    }

    /// Goes down from the target through children that it waits for and that have not ended: all in one
    /// transaction, so none can be started in between.
    fn cancel(&mut self, request: &Request, target: &Target) -> DbResult<Outcome> {
        if target.status.is_terminal() {
            return Ok(Outcome::RequestHandled(RequestResult::NotApplicable(target.status), None));
        }
        let mut open = vec![(request.execution, target.status)];
        while let Some((id, status)) = open.pop() {
            if status == Status::Running {
                self.ask(request, id)?;
            } else {
                self.end_as_cancelled(request, id)?;
            }
            let mut children = self.sql.get(Sql::Children)?.query([key(&id)])?.mapped(|row| {
                let read = || -> DbResult<(Key, Option<Status>)> { Ok((key_of(row, 0)?, status_of(row, 1)?)) };
                Ok(read())
            });
            children.try_for_each(|child| -> DbResult<()> {
                let (key, status) = child??;
                // no request changes one whose status this version does not know
                open.extend(status.map(|status| (key, status)));
                Ok(())
            })?;
        }
        Ok(if target.status == Status::Running {
            Outcome::RequestHandled(RequestResult::Pending, None)
        } else {
            Outcome::RequestHandled(RequestResult::Done, target.parent)
        })
    }

    fn ask(&mut self, request: &Request, id: Key) -> DbResult<()> {
        let params = (key(&id), key(&request.id), RequestKind::Cancel as u8, request.at.as_micros());
        self.sql.insert(Table::Requests, Sql::Ask, params)?;
        self.asked();
        Ok(())
    }

    fn end_as_cancelled(&mut self, request: &Request, id: Key) -> DbResult<()> {
        self.aside.delete(&mut self.sql, Sql::OutcomeOf, [key(&id)])?;
        let reason = self.aside.column(&mut self.sql, &request.reason)?;
        let params = (key(&id), reason.bytes(), request.at.as_micros());
        self.sql.update(Table::Executions, Sql::Cancel, params)?;
        self.sql.delete(Table::Ready, Sql::Unready, [key(&id)])?;
        self.sql.run(Sql::Unquarantine, [key(&id)])?;
        self.sql.delete(Table::Timers, Sql::Untimer, [key(&id)])?;
        self.sql.delete(Table::Waits, Sql::Unwait, [key(&id)])?;
        self.sql.delete(Table::Requests, Sql::Answer, [key(&id)])?;
        Ok(())
    }

    /// Takes back the failures of steps that come last in the record, with their attempts and what was abandoned since:
    /// those steps are tried again.
    fn withdraw_failures(&mut self, id: Key) -> DbResult<()> {
        let first: Option<i64> = self.sql.get(Sql::LastFailures)?.query_row([key(&id)], |row| row.get(0))?;
        if let Some(first) = first {
            self.aside.delete(&mut self.sql, Sql::Untry, (key(&id), first))?;
            let withdrawn = self.aside.delete(&mut self.sql, Sql::Withdraw, (key(&id), first))?;
            self.sql.tally.deleted[Table::Checkpoints as usize] += withdrawn;
        }
        Ok(())
    }

    fn resume(&mut self, id: Key, target: &Target) -> DbResult<Outcome> {
        let is_parked = target.status == Status::Queued && target.is_paused;
        if !is_parked && !matches!(target.status, Status::Failed | Status::Cancelled) {
            return Ok(Outcome::RequestHandled(RequestResult::NotApplicable(target.status), None));
        }
        self.aside.delete(&mut self.sql, Sql::OutcomeOf, [key(&id)])?;
        self.sql.update(Table::Executions, Sql::Resume, (key(&id), i64::from(!is_parked)))?;
        if !is_parked {
            self.sql.delete(Table::Requests, Sql::Answer, [key(&id)])?;
        }
        if target.status == Status::Failed {
            self.withdraw_failures(id)?;
        }
        self.ready(id, false)?;
        Ok(Outcome::RequestHandled(RequestResult::Done, None))
    }
}
