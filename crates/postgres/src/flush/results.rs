//! [`FlushResults`]: the outcomes of a flush's Writes.

use std::collections::{HashMap, HashSet};

use stepfast_core::Key;
use stepfast_core::store::{ExistingExecution, Flush, Outcome, Start, Status, StoreError, Write};

use crate::conn::pipeline::{Query, QueryResult};
use crate::conn::row_counts::{finished_keys_and_count, keys_and_count, single_row};
use crate::conn::statements::Sql;
use crate::error::store_error;
use crate::flush::apply::FlushPlan;
use crate::flush::starts::{StartKind, dedup_key, queue};
use crate::rows::Columns;
use crate::rows::types::to_key;

/// The outcomes of a flush, read from the results of its queries.
#[derive(Default)]
pub(crate) struct FlushResults {
    /// Outcomes other than `Applied`, each with the index of its Write, unordered. Starts that were not inserted are in
    /// `not_inserted` instead.
    pub outcomes: Vec<(usize, Outcome)>,
    /// The indexes of Starts that were not inserted.
    pub not_inserted: Vec<usize>,
}

impl FlushResults {
    /// Reads the results of [`FlushPlan::queries`].
    pub(crate) fn read(
        flush: &Flush,
        plan: &FlushPlan<'_>,
        queries: &[Query<'_>],
        query_results: &[QueryResult],
    ) -> Result<Self, StoreError> {
        let mut results = Self::default();
        for (query, result) in queries.iter().zip(query_results) {
            match query.sql {
                Sql::Finish => {
                    let Some(ended) = finished_keys_and_count(result)?.0 else { continue };
                    let missing = plan.ends.iter().filter(|(_, change)| !ended.contains(&change.key));
                    results.outcomes.extend(missing.map(|(i, _)| (*i, Outcome::NotFound)));
                }
                Sql::Transition => {
                    let missing =
                        missing_indexes(plan.transitions.iter().map(|(i, change)| (*i, change.key)), result)?;
                    results.outcomes.extend(missing.into_iter().map(|i| (i, Outcome::NotFound)));
                }
                Sql::Wake => {
                    let missing = missing_indexes(plan.wakes.iter().copied(), result)?;
                    results.outcomes.extend(missing.into_iter().map(|i| (i, Outcome::NotFound)));
                }
                Sql::StartSelfClaiming => {
                    let open_queues: Vec<&str> = Columns::new(single_row(result)?).next()?;
                    let may_run =
                        |start: &Start| queue(start).is_some_and(|queue| open_queues.contains(&queue));
                    let starts = plan.starts.of(StartKind::SelfClaiming).iter();
                    let queued = starts.filter(|(_, start)| !plan.starts.may_begin(start) || !may_run(start));
                    results.outcomes.extend(queued.map(|(i, _)| (*i, Outcome::Queued)));
                }
                Sql::StartDebounced => results.read_debounced(plan, result)?,
                Sql::InsertCheckpoints | Sql::InsertAttempts => {
                    let Some(requested) = keys_and_count(result)?.0 else { continue };
                    let records = flush.writes.iter().enumerate().filter(|(_, write)| match query.sql {
                        Sql::InsertCheckpoints => matches!(write, Write::Checkpoint(_)),
                        _ => matches!(write, Write::Attempt(_)),
                    });
                    let concerned = records.filter(|(_, write)| requested.contains(&write.execution()));
                    results.outcomes.extend(concerned.map(|(i, _)| (i, Outcome::CancelRequested)));
                }
                Sql::DeleteRequests => {
                    let Some(cancelled) = keys_and_count(result)?.0 else { continue };
                    let ends = plan.ends.iter().filter(|(_, change)| cancelled.contains(&change.key));
                    results.outcomes.extend(ends.map(|(i, _)| (*i, Outcome::Cancelled)));
                }
                Sql::StartNamed | Sql::Start => {
                    let kind = if query.sql == Sql::Start { StartKind::Special } else { StartKind::Named };
                    let starts = plan.starts.of(kind).iter();
                    let missing = missing_indexes(starts.map(|(i, start)| (*i, start.key)), result)?;
                    results.not_inserted.extend(missing);
                }
                _ => {}
            }
        }
        Ok(results)
    }
}

impl FlushResults {
    fn read_debounced(&mut self, plan: &FlushPlan<'_>, result: &QueryResult) -> Result<(), StoreError> {
        let mut key_by_dedup = HashMap::new();
        for row in &result.rows {
            let mut row = Columns::new(row);
            let (key, queue, id): (Key, &str, &str) = (row.key()?, row.next()?, row.next()?);
            key_by_dedup.insert((queue, id), key);
        }
        for (i, start) in plan.starts.of(StartKind::Debounced).iter().chain(&plan.starts.superseded) {
            match dedup_key(start).and_then(|held| key_by_dedup.get(&held)) {
                Some(key) if *key == start.key => {}
                Some(key) => {
                    let existing = ExistingExecution {
                        key: *key,
                        given_id: None,
                        workflow: start.workflow.clone(),
                        fingerprint: None,
                        parent: None,
                        status: Status::Scheduled,
                    };
                    self.outcomes.push((*i, Outcome::Duplicate(Box::new(existing))));
                }
                None => self.not_inserted.push(*i),
            }
        }
        Ok(())
    }
}

/// Returns the indexes of the entries of `expected` whose keys the result does not contain.
fn missing_indexes(
    expected: impl ExactSizeIterator<Item = (usize, Key)>,
    result: &QueryResult,
) -> Result<Vec<usize>, StoreError> {
    if result.rows.len() == expected.len() {
        return Ok(Vec::new());
    }
    let mut found = HashSet::with_capacity(result.rows.len());
    for row in &result.rows {
        found.insert(to_key(row.try_get(0).map_err(|error| store_error("reading a key", &error))?));
    }
    Ok(expected.filter(|(_, key)| !found.contains(key)).map(|(i, _)| i).collect())
}
