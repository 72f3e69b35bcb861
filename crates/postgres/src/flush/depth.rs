//! [`LimitedQueues`] and [`DepthCheck`]: enforce the depth limits of queues when a flush enqueues executions.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use stepfast_core::queue::depth::{Admission, Depth};
use stepfast_core::store::{Flush, Start, StoreError, Write};
use stepfast_core::sync::Mutex;

use crate::conn::pipeline::{Query, QueryResult, column, param};
use crate::conn::statements::Sql;
use crate::error::DEPTH_LIMIT_CHECK;
use crate::rows::Columns;

/// The queues that are known to have a depth limit. For all other queues a flush does not read the limit first. The
/// whole flush fails if one of these other queues has a limit by now: see
/// [`DbError::DepthLimited`](crate::error::DbError::DepthLimited).
#[derive(Debug, Default)]
pub(crate) struct LimitedQueues(Mutex<HashSet<Arc<str>>>);

/// The Starts of a flush that enter queues.
pub(crate) struct QueueEntries<'a> {
    /// The names of the queues, sorted.
    pub(crate) queues: Vec<&'a str>,
    starts: Vec<(usize, &'a Start, &'a str)>,
}

impl LimitedQueues {
    /// Whether one of the queues of `entries` is known to have a depth limit.
    pub(crate) fn may_limit(&self, entries: &QueueEntries<'_>) -> bool {
        let known = self.0.lock();
        !known.is_empty() && entries.queues.iter().any(|queue| known.contains(*queue))
    }

    /// Adds all queues of `entries`, because one of them has a depth limit.
    pub(crate) fn assume_limited(&self, entries: &QueueEntries<'_>) {
        self.0.lock().extend(entries.queues.iter().map(|queue| (*queue).into()));
    }

    /// Adds the queues of `entries` for which `check` has read a depth limit, and removes the other ones.
    fn update(&self, entries: &QueueEntries<'_>, check: &DepthCheck<'_>) {
        let mut known = self.0.lock();
        for queue in &entries.queues {
            if check.0.contains_key(queue) {
                known.insert((*queue).into());
            } else {
                known.remove(*queue);
            }
        }
    }
}

impl<'a> QueueEntries<'a> {
    pub(crate) fn from_flush(flush: &'a Flush) -> Self {
        let starts: Vec<_> = (flush.writes.iter().enumerate())
            .filter_map(|(i, write)| match write {
                Write::Start(start) => Some((i, &**start, &*start.waiting_placement()?.queue)),
                _ => None,
            })
            .collect();
        let queues: BTreeSet<&str> = starts.iter().map(|(_, _, queue)| *queue).collect();
        Self { queues: queues.into_iter().collect(), starts }
    }

    fn names(&self) -> Vec<String> {
        self.queues.iter().map(|queue| (*queue).to_owned()).collect()
    }

    /// Returns a query that fails if one of the queues has a depth limit; `None` without queues.
    pub(crate) fn assert_unlimited_query(&self) -> Option<Query<'static>> {
        let params = vec![param(self.names())];
        let query = Query { sql: Sql::AssertNoDepthLimit, action: DEPTH_LIMIT_CHECK, params };
        (!self.queues.is_empty()).then_some(query)
    }

    /// Returns a query that locks and reads the depths of the queues that have a depth limit.
    pub(crate) fn lock_query(&self) -> Query<'static> {
        Query {
            sql: Sql::LockDepths,
            action: "locking the depths of queues",
            params: vec![param(self.names())],
        }
    }
}

/// The locked depths of the queues that a flush enqueues into.
#[derive(Default)]
pub(crate) struct DepthCheck<'a>(BTreeMap<&'a str, Depth>);

impl<'a> DepthCheck<'a> {
    /// Reads the result of [`QueueEntries::lock_query`].
    pub(crate) fn read(
        entries: &QueueEntries<'a>,
        limited_queues: &LimitedQueues,
        result: &QueryResult,
    ) -> Result<Self, StoreError> {
        let mut check = Self::default();
        for row in &result.rows {
            let mut row = Columns::new(row);
            let (queue, max, bound): (&str, i32, i64) = (row.next()?, row.next()?, row.next()?);
            if let Some(queue) = entries.queues.iter().find(|it| **it == queue) {
                check.0.insert(queue, Depth::new(max.cast_unsigned(), bound.unsigned_abs()));
            }
        }
        limited_queues.update(entries, &check);
        Ok(check)
    }

    /// Returns the indexes of the Starts that are rejected because their queue is full. Returns `Err` with a query if
    /// executions must be counted first. The caller runs the query, passes its result to
    /// [`apply_counts`](Self::apply_counts), and calls this function again.
    pub(crate) fn find_rejected(
        &mut self,
        entries: &QueueEntries<'a>,
    ) -> Result<HashSet<usize>, Query<'static>> {
        let mut depths = self.0.clone();
        let mut rejected = HashSet::new();
        let mut uncounted = BTreeSet::new();
        for (i, start, queue) in &entries.starts {
            let Some(depth) = depths.get_mut(queue) else { continue };
            if !start.can_be_rejected() {
                depth.admit_unconditionally();
                continue;
            }
            match depth.try_admit() {
                Admission::Admitted => {}
                Admission::Full => drop(rejected.insert(*i)),
                Admission::CountFirst => drop(uncounted.insert((*queue).to_owned())),
            }
        }
        if uncounted.is_empty() {
            self.0 = depths;
            return Ok(rejected);
        }
        let params = vec![param(uncounted.into_iter().collect::<Vec<_>>())];
        Err(Query { sql: Sql::CountDepths, action: "counting the depths of queues", params })
    }

    /// Applies the result of the query that [`find_rejected`](Self::find_rejected) has returned.
    pub(crate) fn apply_counts(&mut self, result: &QueryResult) -> Result<(), StoreError> {
        for row in &result.rows {
            let mut row = Columns::new(row);
            let (queue, waiting): (&str, i64) = (row.next()?, row.next()?);
            if let Some(depth) = self.0.get_mut(queue) {
                depth.set_count(waiting.unsigned_abs());
            }
        }
        Ok(())
    }

    /// Returns the query that stores the new upper bounds of the depths.
    pub(crate) fn save_query(&self) -> Query<'static> {
        let depths: Vec<_> = self.0.iter().collect();
        let params = vec![
            column(&depths, |(queue, _)| (**queue).to_owned()),
            column(&depths, |(_, depth)| i64::try_from(depth.bound()).unwrap_or(i64::MAX)),
        ];
        Query { sql: Sql::UpdateDepths, action: "updating the depths of queues", params }
    }
}
