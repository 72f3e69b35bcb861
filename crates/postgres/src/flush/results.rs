//! What a flush has come to: outcomes, and counts of what has changed.

use std::collections::{HashMap, HashSet};

use stepfast_core::Key;
use stepfast_core::store::{ExistingExecution, Flush, Outcome, Start, Status, StoreError, Write};

use crate::conn::pipeline::{QueryResult, Query};
use crate::conn::row_counts::{keys_and_count, finished_keys_and_count, single_row};
use crate::conn::statements::Sql;
use crate::error::store_error;
use crate::flush::apply::Sorted;
use crate::flush::starts::{held, queue};
use crate::rows::Columns;
use crate::rows::types::key;

/// What the statements of a flush did.
#[derive(Default)]
pub(crate) struct Applied {
    /// Outcomes other than `Applied`, Duplicates excepted, in no order.
    pub outcomes: Vec<(usize, Outcome)>,
    /// Starts that lost.
    pub losers: Vec<usize>,
}

impl Applied {
    /// Reads the answers to [`Sorted::jobs`].
    pub(crate) fn read(
        flush: &Flush,
        sorted: &Sorted<'_>,
        jobs: &[Query<'_>],
        answers: &[QueryResult],
    ) -> Result<Self, StoreError> {
        let mut applied = Self::default();
        for (job, answer) in jobs.iter().zip(answers) {
            match job.sql {
                Sql::MoveEnded => {
                    let Some(ended) = finished_keys_and_count(answer)?.0 else { continue };
                    let missing = sorted.ends.iter().filter(|(_, change)| !ended.contains(&change.key));
                    applied.outcomes.extend(missing.map(|(i, _)| (*i, Outcome::NotFound)));
                }
                Sql::Move => {
                    let missing = missing(sorted.moves.iter().map(|(i, change)| (*i, change.key)), answer)?;
                    applied.outcomes.extend(missing.into_iter().map(|i| (i, Outcome::NotFound)));
                }
                Sql::Wake => {
                    let missing = missing(sorted.wakes.iter().copied(), answer)?;
                    applied.outcomes.extend(missing.into_iter().map(|i| (i, Outcome::NotFound)));
                }
                Sql::StartYielding => {
                    let free: Vec<&str> = Columns::of(single_row(answer)?).next()?;
                    let begins = |start: &Start| queue(start).is_some_and(|queue| free.contains(&queue));
                    let waits = sorted
                        .starts
                        .yielding
                        .iter()
                        .filter(|(_, start, may_begin)| !*may_begin || !begins(start));
                    applied.outcomes.extend(waits.map(|(i, _, _)| (*i, Outcome::Queued)));
                }
                Sql::Merge => applied.read_merged(sorted, answer)?,
                Sql::Checkpoint | Sql::Attempt => {
                    let Some(asked) = keys_and_count(answer)?.0 else { continue };
                    let records = flush.writes.iter().enumerate().filter(|(_, write)| match job.sql {
                        Sql::Checkpoint => matches!(write, Write::Checkpoint(_)),
                        _ => matches!(write, Write::Attempt(_)),
                    });
                    let heard = records.filter(|(_, write)| asked.contains(&write.execution()));
                    applied.outcomes.extend(heard.map(|(i, _)| (i, Outcome::CancelRequested)));
                }
                Sql::Forget => {
                    let Some(cancelled) = keys_and_count(answer)?.0 else { continue };
                    let met = sorted.ends.iter().filter(|(_, change)| cancelled.contains(&change.key));
                    applied.outcomes.extend(met.map(|(i, _)| (*i, Outcome::Cancelled)));
                }
                Sql::StartNamed | Sql::Start => {
                    let starts =
                        if job.sql == Sql::Start { &sorted.starts.special } else { &sorted.starts.named };
                    let lost = missing(starts.iter().map(|(i, start)| (*i, start.key)), answer)?;
                    applied.losers.extend(lost);
                }
                _ => {}
            }
        }
        Ok(applied)
    }
}

impl Applied {
    fn read_merged(&mut self, sorted: &Sorted<'_>, answer: &QueryResult) -> Result<(), StoreError> {
        let mut there = HashMap::new();
        for row in &answer.rows {
            let mut row = Columns::of(row);
            let (key, queue, id): (Key, &str, &str) = (row.key()?, row.next()?, row.next()?);
            there.insert((queue, id), key);
        }
        for (i, start) in sorted.starts.merging.iter().chain(&sorted.starts.overtaken) {
            match held(start).and_then(|held| there.get(&held)) {
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
                None => self.losers.push(*i),
            }
        }
        Ok(())
    }
}

/// Those of `expected` whose keys the answer does not have.
fn missing(
    expected: impl ExactSizeIterator<Item = (usize, Key)>,
    answer: &QueryResult,
) -> Result<Vec<usize>, StoreError> {
    if answer.rows.len() == expected.len() {
        return Ok(Vec::new());
    }
    let mut found = HashSet::with_capacity(answer.rows.len());
    for row in &answer.rows {
        found.insert(key(row.try_get(0).map_err(|error| store_error("reading a key", &error))?));
    }
    Ok(expected.filter(|(_, key)| !found.contains(key)).map(|(i, _)| i).collect())
}
