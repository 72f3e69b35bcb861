//! [`Report`]: what a statement of a flush reports about Writes that it did not simply apply. The statement keeps each
//! report in the lane's row as well. So a flush that is sent again has the outcomes of its first try.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use stepfast_core::Key;
use stepfast_core::store::{
    ExistingExecution, Flush, KeptExecution, KeptKey, Outcome, Start, Status, StoreError, Write,
    decode_outcomes, unreadable_outcomes,
};

use crate::conn::pipeline::QueryResult;
use crate::error::store_error;
use crate::flush::apply::FlushPlan;
use crate::flush::starts::{StartKind, dedup_key};

/// A report, as the statements write it.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// Executions that a Transition, a Wake or a CloseBatch did not change. Those of Wakes are not kept.
    NotFound(Vec<KeptKey>),
    /// Executions that ended as cancelled, because they had a pending cancel.
    Cancelled(Vec<KeptKey>),
    /// Executions with checkpoints or attempts in the flush, and with a pending cancel.
    CancelRequested(Vec<KeptKey>),
    /// Queues whose self-claiming Starts were queued.
    QueuedIn(Vec<String>),
    /// Scheduled executions into which debounced Starts were merged, with their queues and dedup_ids.
    Merged(Vec<(KeptKey, String, String)>),
    /// Starts that were not inserted, and the executions that have their keys, ids or dedup_ids.
    NotInserted(Vec<KeptKey>, Vec<Conflict>),
    /// Starts whose queue is full, and the executions that have their keys, ids or dedup_ids.
    Rejected(Vec<KeptKey>, Vec<Conflict>),
    /// Messages that were not sent: the index among the flush's messages, and the code of send_messages.sql.
    Unsent(Vec<(usize, i64)>),
    /// The encoded outcomes of requests.
    Decided(serde_json::Value),
}

/// An existing execution, with its queue and active dedup_id.
#[derive(Deserialize)]
pub(super) struct Conflict(KeptExecution, Option<String>, Option<String>);

/// Reads the reports of a flush from the results of its queries.
pub(super) fn read_reports(results: &[QueryResult]) -> Result<Vec<Report>, StoreError> {
    let mut reports = Vec::new();
    for row in results.iter().filter_map(|result| result.rows.first()) {
        for (i, _) in row.columns().iter().enumerate().filter(|(_, column)| column.name() == "report") {
            let report: Option<&str> =
                row.try_get(i).map_err(|error| store_error("reading a report", &error))?;
            reports.extend(report.map(parse).transpose()?);
        }
    }
    Ok(reports)
}

/// Parses the reports that the lane's row has kept.
pub(super) fn parse_kept_reports(kept: Option<&str>) -> Result<Vec<Report>, StoreError> {
    kept.map_or(Ok(Vec::new()), parse)
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| unreadable_outcomes())
}

/// Returns the outcomes of a flush other than `Applied`, in the order of its Writes.
pub(super) fn read_outcomes(
    flush: &Flush,
    plan: &FlushPlan<'_>,
    reports: Vec<Report>,
) -> Result<Vec<(usize, Outcome)>, StoreError> {
    if reports.is_empty() && plan.starts.superseded.is_empty() {
        return Ok(Vec::new());
    }
    let mut findings = Findings::default();
    let mut outcomes = Vec::new();
    for report in reports {
        match report {
            Report::Decided(decided) => outcomes.extend(decode_outcomes(Some(&decided.to_string()))?),
            report => findings.add(report)?,
        }
    }
    let mut sends = 0;
    for (i, write) in flush.writes.iter().enumerate() {
        let outcome = match write {
            Write::Start(start) if start.debounce_window.is_some() => {
                findings.outcome_of_debounced(start, plan)?
            }
            Write::Start(start) => findings.outcome_of_start(start)?,
            Write::Transition(_) | Write::Wake(_) | Write::CloseBatch(_) => {
                findings.changes.get(&write.execution()).cloned()
            }
            Write::Send(_) => {
                sends += 1;
                findings.unsent.get(&(sends - 1)).cloned()
            }
            Write::Checkpoint(_) | Write::Attempt(_) => {
                let is_requested = findings.cancel_requested.contains(&write.execution());
                is_requested.then_some(Outcome::CancelRequested)
            }
            _ => None,
        };
        outcomes.extend(outcome.map(|outcome| (i, outcome)));
    }
    outcomes.sort_unstable_by_key(|(i, _)| *i);
    Ok(outcomes)
}

/// The contents of the reports of a flush.
#[derive(Default)]
struct Findings {
    /// The outcomes of Transitions, Wakes and CloseBatches, by execution.
    changes: HashMap<Key, Outcome>,
    /// The queues whose self-claiming Starts were queued.
    queued_in: HashSet<String>,
    cancel_requested: HashSet<Key>,
    /// The outcomes of messages that were not sent, by their index among the flush's messages.
    unsent: HashMap<usize, Outcome>,
    /// The executions into which debounced Starts were merged, by queue and dedup_id.
    merged: HashMap<(String, String), Key>,
    not_inserted: HashSet<Key>,
    rejected: HashSet<Key>,
    /// Existing executions: by key, by the workflow_id that a caller gave, and by queue and dedup_id.
    by_key: HashMap<Key, ExistingExecution>,
    by_id: HashMap<Arc<str>, Key>,
    by_dedup_id: HashMap<(String, String), Key>,
}

impl Findings {
    fn add(&mut self, report: Report) -> Result<(), StoreError> {
        match report {
            Report::NotFound(keys) => self.add_changes(keys, &Outcome::NotFound),
            Report::Cancelled(keys) => self.add_changes(keys, &Outcome::Cancelled),
            Report::QueuedIn(queues) => {
                self.queued_in.extend(queues);
                Ok(())
            }
            Report::CancelRequested(keys) => add_keys(&mut self.cancel_requested, keys),
            Report::Merged(executions) => {
                for (key, queue, dedup_id) in executions {
                    self.merged.insert((queue, dedup_id), key.try_into()?);
                }
                Ok(())
            }
            Report::NotInserted(keys, conflicts) => {
                add_keys(&mut self.not_inserted, keys)?;
                self.add_conflicts(conflicts)
            }
            Report::Rejected(keys, conflicts) => {
                add_keys(&mut self.rejected, keys)?;
                self.add_conflicts(conflicts)
            }
            Report::Unsent(messages) => {
                for (index, code) in messages {
                    let outcome = match code {
                        -1 => Outcome::NotFound,
                        -2 => Outcome::AlreadySent,
                        // an unknown status is shown as queued, and one of a later version is terminal
                        status => Outcome::Ended(Status::from_number(status).unwrap_or(Status::Queued)),
                    };
                    self.unsent.insert(index, outcome);
                }
                Ok(())
            }
            Report::Decided(_) => Ok(()),
        }
    }

    fn add_changes(&mut self, keys: Vec<KeptKey>, outcome: &Outcome) -> Result<(), StoreError> {
        for key in keys {
            self.changes.insert(key.try_into()?, outcome.clone());
        }
        Ok(())
    }

    fn add_conflicts(&mut self, conflicts: Vec<Conflict>) -> Result<(), StoreError> {
        for Conflict(existing, queue, dedup_id) in conflicts {
            let existing: ExistingExecution = existing.try_into()?;
            let key = existing.key;
            self.by_id.extend(existing.given_id.clone().map(|id| (id, key)));
            self.by_dedup_id.extend(queue.zip(dedup_id).map(|dedup| (dedup, key)));
            self.by_key.insert(key, existing);
        }
        Ok(())
    }

    fn outcome_of_start(&self, start: &Start) -> Result<Option<Outcome>, StoreError> {
        let is_rejected = self.rejected.contains(&start.key);
        if is_rejected || self.not_inserted.contains(&start.key) {
            return self.outcome_of_conflict(start, is_rejected).map(Some);
        }
        let is_queued =
            start.placement.as_ref().is_some_and(|placement| self.queued_in.contains(&*placement.queue));
        Ok((is_queued && matches!(StartKind::of(start), StartKind::SelfClaiming)).then_some(Outcome::Queued))
    }

    /// Returns the outcome of a debounced Start. A Start that a later one of the flush supersedes is a duplicate of the
    /// later one, or of the execution into which the later one was merged.
    fn outcome_of_debounced(
        &self,
        start: &Start,
        plan: &FlushPlan<'_>,
    ) -> Result<Option<Outcome>, StoreError> {
        let dedup = dedup_key(start);
        // in the order of their dedup keys
        let sent = plan.starts.of(StartKind::Debounced);
        let sent = sent.binary_search_by(|(_, sent)| dedup_key(sent).cmp(&dedup)).map(|i| sent[i].1.key);
        let sent = sent.unwrap_or(start.key);
        let merged = dedup.and_then(|(queue, id)| self.merged.get(&(queue.to_owned(), id.to_owned())));
        if merged.is_none() && self.not_inserted.contains(&sent) {
            return self.outcome_of_conflict(start, false).map(Some);
        }
        let key = *merged.unwrap_or(&sent);
        let existing = || ExistingExecution {
            key,
            given_id: None,
            workflow: start.workflow.clone(),
            fingerprint: None,
            parent: None,
            status: Status::Scheduled,
        };
        Ok((key != start.key).then(|| Outcome::Duplicate(Box::new(existing()))))
    }

    /// Returns the outcome of a Start that was not inserted. `is_rejected`: whether its queue is full.
    fn outcome_of_conflict(&self, start: &Start, is_rejected: bool) -> Result<Outcome, StoreError> {
        let by_id = || self.by_key.get(self.by_id.get(start.workflow_id.as_deref()?)?);
        if let Some(existing) = self.by_key.get(&start.key).or_else(by_id) {
            return Ok(Outcome::Duplicate(Box::new(existing.clone())));
        }
        let holder = dedup_key(start)
            .and_then(|(queue, id)| self.by_dedup_id.get(&(queue.to_owned(), id.to_owned())))
            .and_then(|key| self.by_key.get(key));
        if let Some(holder) = holder.filter(|_| start.debounce_window.is_some()) {
            return Ok(Outcome::Duplicate(Box::new(holder.clone())));
        }
        if holder.is_some() || start.dedup_id.is_some() && !is_rejected {
            return Ok(Outcome::Deduplicated(holder.cloned().map(Box::new)));
        }
        if is_rejected {
            return Ok(Outcome::Full);
        }
        if start.is_bundle() {
            // it does not fit into its batch
            return Ok(Outcome::NotFound);
        }
        Err(StoreError::Corrupt(format!(
            "execution {} could not be inserted, but no other execution has its key or workflow_id",
            start.key
        )))
    }
}

fn add_keys(set: &mut HashSet<Key>, keys: Vec<KeptKey>) -> Result<(), StoreError> {
    for key in keys {
        set.insert(key.try_into()?);
    }
    Ok(())
}
