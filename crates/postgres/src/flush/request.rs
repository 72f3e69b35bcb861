//! Applies requests: decides, on locked rows, which executions each cancel, expiry, resume or pause changes.

use std::collections::{BTreeMap, HashMap, HashSet};

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::store::{
    Flush, Outcome, Request, RequestKind, RequestResult, Status, StoreError, UNKNOWN_STATUS_MESSAGE,
    WorkerId, continues_in_place, encode_outcomes,
};
use uuid::Uuid;

use crate::changes::Changes;
use crate::conn::batches::lock_batches_query;
use crate::conn::pipeline::{Query, QueryResult, column, param};
use crate::conn::statements::Sql;
use crate::error::store_error;
use crate::rows::Columns;
use crate::rows::types::{Timestamptz, non_empty_bytes, to_key, to_uuid};

/// A locked row of an execution.
#[derive(Clone, Debug)]
struct LockedRow {
    status: Status,
    is_parked: bool,
    parent: Option<Key>,
    is_detached: bool,
    deadline_at: Option<Timestamp>,
}

/// The rows that requests may change. All of them are locked, so they cannot change before the commit.
#[derive(Debug, Default)]
pub(crate) struct LockedRows {
    rows: BTreeMap<Key, LockedRow>,
    /// Rows whose status this version does not support. Requests do not change them.
    unknown: HashSet<Key>,
    children: HashMap<Key, Vec<Key>>,
    /// Executions with a pending pause. Only executions to resume are looked up.
    pausing: HashSet<Key>,
}

/// The effects of requests.
#[derive(Debug, Default)]
pub(crate) struct RequestDecisions<'a> {
    /// Executions that are cancelled at once, each with its request.
    cancelled: Vec<(Key, &'a Request)>,
    /// Resumed executions, each with its status before the resume.
    resumed: Vec<(Key, Status)>,
    /// Executions whose pending pauses are withdrawn.
    withdrawn: Vec<Key>,
    /// Executions that are parked at once, each with its request.
    parked: Vec<(Key, &'a Request)>,
    /// Running executions, each with its request. Their owners handle the requests later.
    requested: Vec<(Key, &'a Request)>,
    /// The outcomes of the requests, each with the index of its Write.
    outcomes: Vec<(usize, Outcome)>,
}

impl LockedRows {
    /// Reads the result of lock_executions.sql.
    pub(crate) fn read(result: &QueryResult) -> Result<Self, StoreError> {
        let fail = |error| store_error("reading locked executions", &error);
        let mut locked_rows = Self::default();
        for row in &result.rows {
            let key = to_key(row.try_get(0).map_err(fail)?);
            let status: i16 = row.try_get(1).map_err(fail)?;
            let Some(status) = Status::from_number(status.into()) else {
                locked_rows.unknown.insert(key);
                continue;
            };
            let parent: Option<Uuid> = row.try_get(3).map_err(fail)?;
            let locked_row = LockedRow {
                status,
                is_parked: row.try_get(2).map_err(fail)?,
                parent: parent.map(to_key),
                is_detached: row.try_get(4).map_err(fail)?,
                deadline_at: row.try_get::<_, Option<Timestamptz>>(5).map_err(fail)?.map(|at| at.0),
            };
            if let Some(parent) = locked_row.parent.filter(|_| !locked_row.is_detached) {
                locked_rows.children.entry(parent).or_default().push(key);
            }
            locked_rows.rows.insert(key, locked_row);
        }
        Ok(locked_rows)
    }

    /// Reads the result of `PendingRequests`, a query for the executions to resume, which must be locked.
    pub(crate) fn read_pauses(&mut self, result: &QueryResult) -> Result<(), StoreError> {
        for row in &result.rows {
            let mut row = Columns::new(row);
            let (key, id, kind) = (row.key()?, row.key()?, row.next::<i16>()?);
            if RequestKind::from_row(kind.into(), id) == Some(RequestKind::Pause) {
                self.pausing.insert(key);
            }
        }
        Ok(())
    }

    /// Returns the query that locks the unfinished batches among the rows; `None` if there are none.
    pub(crate) fn lock_batches_query(&self) -> Option<Query<'static>> {
        let unfinished = self.rows.iter().filter(|(_, row)| !row.status.is_terminal());
        lock_batches_query(unfinished.map(|(key, _)| *key).filter(|key| key.is_batch()).collect())
    }

    /// Whether `locked` contains all rows of `self`.
    pub(crate) fn is_subset_of(&self, locked: &LockedRows) -> bool {
        self.rows.keys().all(|key| locked.rows.contains_key(key))
    }

    /// Decides the effects and outcomes of `requests`, in order.
    pub(crate) fn decide<'a>(mut self, requests: &[(usize, &'a Request)]) -> RequestDecisions<'a> {
        let mut decisions = RequestDecisions::default();
        for &(i, request) in requests {
            let outcome = match self.rows.get(&request.execution).cloned() {
                None if self.unknown.contains(&request.execution) => {
                    Outcome::Rejected(UNKNOWN_STATUS_MESSAGE.into())
                }
                None => Outcome::NotFound,
                Some(target) => {
                    let has_pause = self.pausing.contains(&request.execution);
                    let result =
                        request.decide(target.status, target.is_parked, target.deadline_at, has_pause);
                    match request.kind {
                        _ if matches!(result, RequestResult::NotApplicable(_)) => {}
                        RequestKind::Cancel | RequestKind::Expire => {
                            self.cancel_tree(request, &mut decisions);
                        }
                        RequestKind::CancelItem(_) => decisions.requested.push((request.execution, request)),
                        RequestKind::Resume => self.resume(request.execution, &mut decisions),
                        RequestKind::Pause => self.pause(request, &mut decisions),
                    }
                    request.outcome(result, target.parent)
                }
            };
            decisions.outcomes.push((i, outcome));
        }
        decisions
    }

    fn cancel_tree<'a>(&mut self, request: &'a Request, decisions: &mut RequestDecisions<'a>) {
        let mut stack = vec![request.execution];
        while let Some(next) = stack.pop() {
            let Some(row) = self.rows.get_mut(&next).filter(|row| !row.status.is_terminal()) else {
                continue;
            };
            if row.status == Status::Running {
                decisions.requested.push((next, request));
            } else {
                row.status = Status::Cancelled;
                row.is_parked = false;
                decisions.cancelled.push((next, request));
            }
            stack.extend(self.children.get(&next).into_iter().flatten());
        }
    }

    fn pause<'a>(&mut self, request: &'a Request, decisions: &mut RequestDecisions<'a>) {
        match self.rows.get_mut(&request.execution) {
            Some(row) if row.status == Status::Running => {
                decisions.requested.push((request.execution, request));
            }
            Some(row) if !row.is_parked => {
                row.status = Status::Queued;
                row.is_parked = true;
                decisions.parked.push((request.execution, request));
            }
            _ => {}
        }
    }

    fn resume(&mut self, key: Key, decisions: &mut RequestDecisions<'_>) {
        match self.rows.get_mut(&key) {
            Some(row) if continues_in_place(row.status, row.is_parked) => {
                decisions.resumed.push((key, row.status));
                row.status = Status::Queued;
                row.is_parked = false;
            }
            _ => decisions.withdrawn.push(key),
        }
    }
}

impl<'a> RequestDecisions<'a> {
    /// Returns the query that keeps the outcomes of the requests.
    pub(crate) fn keep_query(&self, flush: &Flush) -> Option<Query<'static>> {
        let kept = encode_outcomes(&self.outcomes)?;
        let params = vec![param(flush.worker.0), param(flush.lane.cast_signed()), param(kept)];
        Some(Query { sql: Sql::KeepDecided, action: "keeping the outcomes of requests", params })
    }

    /// Returns the queries that delete the rows by which executions that do not run would continue.
    fn delete_wake_conditions(executions: &[(Key, &'a Request)], queries: &mut Vec<Query<'a>>) {
        for (sql, action) in [
            (Sql::DeleteReady, "deleting from ready"),
            (Sql::DeleteQuarantine, "deleting from the quarantine"),
            (Sql::DeleteTimers, "deleting timers"),
            (Sql::DeleteWaits, "deleting waits"),
        ] {
            let params = vec![column(executions, |(key, _)| to_uuid(*key))];
            queries.push(Query { sql, action, params });
        }
    }

    /// Returns the changes by the requests that concern other processes. `results`: those of [`queries`](Self::queries).
    pub(crate) fn changes(
        &self,
        queries: &[Query<'_>],
        results: &[QueryResult],
    ) -> Result<Changes, StoreError> {
        let mut changes = Changes::default();
        for (key, _) in self.cancelled.iter().chain(&self.parked) {
            changes.add_ended(*key);
        }
        if !self.cancelled.is_empty() {
            // queued executions counted for the depths of their queues
            changes.add_free_slots();
        }
        for _ in &self.resumed {
            changes.add_ready(None);
        }
        let names_workers = |query: &Query<'_>| matches!(query.sql, Sql::InsertRequests | Sql::DeletePauses);
        let of_workers = queries.iter().zip(results).filter(|(query, _)| names_workers(query));
        for row in of_workers.flat_map(|(_, result)| &result.rows) {
            if let Some(worker) = Columns::new(row).next::<Option<i64>>()? {
                changes.add_requested(WorkerId(worker));
            }
        }
        Ok(changes)
    }

    /// Returns the queries that apply the decisions.
    pub(crate) fn queries(&self) -> Vec<Query<'a>> {
        let mut queries = Vec::new();
        // a later cancel of a parent in the same flush also ends parked children
        let mut parked = self.parked.clone();
        parked.sort_by_key(|(key, _)| *key);
        if !parked.is_empty() {
            let params = vec![
                column(&parked, |(key, _)| to_uuid(*key)),
                column(&parked, |(_, request)| non_empty_bytes(&request.reason)),
            ];
            queries.push(Query { sql: Sql::Park, action: "parking executions", params });
            Self::delete_wake_conditions(&parked, &mut queries);
        }
        let mut cancelled = self.cancelled.clone();
        cancelled.sort_by_key(|(key, _)| *key);
        if !cancelled.is_empty() {
            let params = vec![
                column(&cancelled, |(key, _)| to_uuid(*key)),
                column(&cancelled, |(_, request)| non_empty_bytes(&request.reason)),
                column(&cancelled, |(_, request)| Timestamptz(request.at)),
            ];
            queries.push(Query { sql: Sql::Cancel, action: "cancelling executions", params });
            Self::delete_wake_conditions(&cancelled, &mut queries);
            let params = vec![column(&cancelled, |(key, _)| to_uuid(*key))];
            queries.push(Query { sql: Sql::ClearRequests, action: "deleting requests", params });
            let batches: Vec<Key> =
                cancelled.iter().map(|(key, _)| *key).filter(|key| key.is_batch()).collect();
            if !batches.is_empty() {
                let params = vec![column(&batches, |key| to_uuid(*key))];
                queries.push(Query { sql: Sql::DeleteBatches, action: "deleting batches", params });
            }
        }
        if !self.resumed.is_empty() {
            let mut resumed = self.resumed.clone();
            resumed.sort_unstable_by_key(|(key, _)| *key);
            let params = vec![
                column(&resumed, |(key, _)| to_uuid(*key)),
                column(&resumed, |(_, was)| was.is_terminal()),
            ];
            queries.push(Query { sql: Sql::Resume, action: "resuming executions", params });
            let params = vec![column(&self.resumed, |(key, _)| to_uuid(*key))];
            queries.push(Query { sql: Sql::ReadyResumed, action: "making executions ready", params });
            let failed: Vec<Key> =
                resumed.iter().filter(|(_, was)| *was == Status::Failed).map(|(key, _)| *key).collect();
            if !failed.is_empty() {
                let params = vec![column(&failed, |key| to_uuid(*key))];
                queries.push(Query { sql: Sql::RetractFailures, action: "retracting failures", params });
            }
        }
        let parked = self.parked.iter().map(|(key, _)| key);
        let resumed = self.resumed.iter().map(|(key, _)| key);
        let without_pauses: Vec<Key> = parked.chain(resumed).chain(&self.withdrawn).copied().collect();
        if !without_pauses.is_empty() {
            let params = vec![column(&without_pauses, |key| to_uuid(*key))];
            queries.push(Query { sql: Sql::DeletePauses, action: "deleting pauses", params });
        }
        if !self.requested.is_empty() {
            let params = vec![
                column(&self.requested, |(_, request)| Timestamptz(request.at)),
                column(&self.requested, |(_, request)| i16::from(request.recorded_kind().number())),
                column(&self.requested, |(key, _)| to_uuid(*key)),
                column(&self.requested, |(_, request)| to_uuid(request.id)),
            ];
            queries.push(Query { sql: Sql::InsertRequests, action: "inserting requests", params });
        }
        queries
    }
}
