//! Requests: what a cancel or resume does to whom, decided over rows that are locked.

use std::collections::{BTreeMap, HashMap, HashSet};

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::store::{
    RequestResult as Answered, Outcome, Request, RequestKind, Status, StoreError, UNKNOWN_STATUS_MESSAGE,
};
use uuid::Uuid;

use crate::conn::pipeline::{QueryResult, Query, column};
use crate::conn::statements::Sql;
use crate::error::store_error;
use crate::rows::types::reason;
use crate::rows::types::{Instant, key, uuid};

/// A locked row.
#[derive(Clone, Debug)]
struct Target {
    status: Status,
    is_paused: bool,
    parent: Option<Key>,
    is_detached: bool,
    deadline_at: Option<Timestamp>,
}

/// The rows that requests concern: all of them locked, so nothing here changes before the commit.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    rows: BTreeMap<Key, Target>,
    /// Those whose status this version does not know: no request changes them.
    unknown: HashSet<Key>,
    children: HashMap<Key, Vec<Key>>,
}

/// What is to be done.
#[derive(Debug, Default)]
pub(crate) struct Decisions<'a> {
    ended: Vec<(Key, &'a Request)>,
    /// With what they were.
    resumed: Vec<(Key, Status)>,
    asked: Vec<(Key, &'a Request)>,
    /// The answers, by index of the Write.
    pub outcomes: Vec<(usize, Outcome)>,
}

impl Targets {
    /// Reads the answer of the locking statement.
    pub(crate) fn read(answer: &QueryResult) -> Result<Self, StoreError> {
        let fail = |error| store_error("reading locked executions", &error);
        let mut targets = Self::default();
        for row in &answer.rows {
            let own = key(row.try_get(0).map_err(fail)?);
            let status: i16 = row.try_get(1).map_err(fail)?;
            let Some(status) = Status::from_number(status.into()) else {
                targets.unknown.insert(own);
                continue;
            };
            let parent: Option<Uuid> = row.try_get(3).map_err(fail)?;
            let target = Target {
                status,
                is_paused: row.try_get(2).map_err(fail)?,
                parent: parent.map(key),
                is_detached: row.try_get(4).map_err(fail)?,
                deadline_at: row.try_get::<_, Option<Instant>>(5).map_err(fail)?.map(|at| at.0),
            };
            if let Some(parent) = target.parent.filter(|_| !target.is_detached) {
                targets.children.entry(parent).or_default().push(own);
            }
            targets.rows.insert(own, target);
        }
        Ok(targets)
    }

    /// True if all rows of `self` are in `locked`.
    pub(crate) fn is_within(&self, locked: &Targets) -> bool {
        self.rows.keys().all(|key| locked.rows.contains_key(key))
    }

    /// Decides about `requests`, in their order.
    pub(crate) fn decide<'a>(mut self, requests: &[(usize, &'a Request)]) -> Decisions<'a> {
        let mut decisions = Decisions::default();
        for &(i, request) in requests {
            let outcome = match self.rows.get(&request.execution).cloned() {
                None if self.unknown.contains(&request.execution) => Outcome::Rejected(UNKNOWN_STATUS_MESSAGE.into()),
                None => Outcome::NotFound,
                Some(target) => match request.kind {
                    RequestKind::Cancel => self.cancel(request, &target, &mut decisions),
                    RequestKind::Expire => self.expire(request, &target, &mut decisions),
                    RequestKind::Resume => self.resume(request, &target, &mut decisions),
                },
            };
            decisions.outcomes.push((i, outcome));
        }
        decisions
    }

    fn cancel<'a>(
        &mut self,
        request: &'a Request,
        target: &Target,
        decisions: &mut Decisions<'a>,
    ) -> Outcome {
        if target.status.is_terminal() {
            return Outcome::RequestHandled(Answered::NotApplicable(target.status), None);
        }
        let mut stack = vec![request.execution];
        while let Some(next) = stack.pop() {
            let Some(row) = self.rows.get_mut(&next).filter(|row| !row.status.is_terminal()) else {
                continue;
            };
            if row.status == Status::Running {
                decisions.asked.push((next, request));
            } else {
                row.status = Status::Cancelled;
                row.is_paused = false;
                decisions.ended.push((next, request));
            }
            stack.extend(self.children.get(&next).into_iter().flatten());
        }
        if target.status == Status::Running {
            Outcome::RequestHandled(Answered::Pending, None)
        } else {
            Outcome::RequestHandled(Answered::Done, target.parent)
        }
    }

    fn expire<'a>(
        &mut self,
        request: &'a Request,
        target: &Target,
        decisions: &mut Decisions<'a>,
    ) -> Outcome {
        let has_expired = target.deadline_at.is_some_and(|at| at <= request.at);
        if has_expired && target.status != Status::Running {
            self.cancel(request, target, decisions)
        } else {
            Outcome::RequestHandled(Answered::NotApplicable(target.status), None)
        }
    }

    fn resume<'a>(
        &mut self,
        request: &'a Request,
        target: &Target,
        decisions: &mut Decisions<'a>,
    ) -> Outcome {
        let had_ended = matches!(target.status, Status::Failed | Status::Cancelled);
        if !had_ended && !target.is_paused {
            return Outcome::RequestHandled(Answered::NotApplicable(target.status), None);
        }
        if let Some(row) = self.rows.get_mut(&request.execution) {
            row.status = Status::Queued;
            row.is_paused = false;
        }
        decisions.resumed.push((request.execution, target.status));
        Outcome::RequestHandled(Answered::Done, None)
    }
}

impl<'a> Decisions<'a> {
    /// The statements that carry them out.
    pub(crate) fn jobs(&self) -> Vec<Query<'a>> {
        let mut jobs = Vec::new();
        let mut ended = self.ended.clone();
        ended.sort_by_key(|(key, _)| *key);
        if !ended.is_empty() {
            let params = vec![
                column(&ended, |(key, _)| uuid(*key)),
                column(&ended, |(_, request)| reason(&request.reason)),
                column(&ended, |(_, request)| Instant(request.at)),
            ];
            jobs.push(Query { sql: Sql::Cancel, action: "cancelling executions", params });
            for (sql, what) in [
                (Sql::Unready, "deleting from ready"),
                (Sql::Unquarantine, "releasing from the quarantine"),
                (Sql::Untimer, "deleting timers"),
                (Sql::Unwait, "deleting waits"),
                (Sql::Answer, "deleting requests"),
            ] {
                jobs.push(Query { sql, action: what, params: vec![column(&ended, |(key, _)| uuid(*key))] });
            }
        }
        if !self.resumed.is_empty() {
            let mut resumed = self.resumed.clone();
            resumed.sort_unstable_by_key(|(key, _)| *key);
            let params =
                vec![column(&resumed, |(key, _)| uuid(*key)), column(&resumed, |(_, was)| was.is_terminal())];
            jobs.push(Query { sql: Sql::Resume, action: "resuming executions", params });
            let params = vec![column(&self.resumed, |(key, _)| uuid(*key))];
            jobs.push(Query { sql: Sql::ReadyAgain, action: "making executions ready", params });
            let renewed: Vec<Key> =
                resumed.iter().filter(|(_, was)| was.is_terminal()).map(|(key, _)| *key).collect();
            let failed: Vec<Key> =
                resumed.iter().filter(|(_, was)| *was == Status::Failed).map(|(key, _)| *key).collect();
            if !failed.is_empty() {
                let params = vec![column(&failed, |key| uuid(*key))];
                jobs.push(Query { sql: Sql::Withdraw, action: "withdrawing failures", params });
            }
            if !renewed.is_empty() {
                let params = vec![column(&renewed, |key| uuid(*key))];
                jobs.push(Query { sql: Sql::Answer, action: "deleting requests", params });
            }
        }
        if !self.asked.is_empty() {
            let params = vec![
                column(&self.asked, |(_, request)| Instant(request.at)),
                column(&self.asked, |_| RequestKind::Cancel as i16),
                column(&self.asked, |(key, _)| uuid(*key)),
                column(&self.asked, |(_, request)| uuid(request.id)),
            ];
            jobs.push(Query { sql: Sql::Request, action: "inserting requests", params });
        }
        jobs
    }
}
