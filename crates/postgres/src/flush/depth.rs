//! [`Depths`]: the queues of which a flush has to know how many wait in them, before it puts anything into them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use stepfast_core::queue::depth::{Depth, Admission};
use stepfast_core::store::{Flush, Start, StoreError, Write};
use stepfast_core::sync::Mutex;

use crate::conn::pipeline::{QueryResult, Query, column, param};
use crate::conn::statements::Sql;
use crate::error::DEPTH_LIMIT_CHECK;
use crate::rows::Columns;

/// Queues that are known to have a maximal depth. Into others a flush puts what it has without asking, and is refused as
/// a whole if one of them has a maximum meanwhile: see [`Trouble::Deep`](crate::error::Trouble::Deep).
#[derive(Debug, Default)]
pub(crate) struct Depths(Mutex<HashSet<Arc<str>>>);

/// What a flush puts into queues.
pub(crate) struct Entries<'a> {
    /// The queues, by name.
    pub(crate) queues: Vec<&'a str>,
    starts: Vec<(usize, &'a Start, &'a str)>,
}

impl Depths {
    /// True if one of these has a maximum, as far as is known.
    pub(crate) fn concern(&self, entries: &Entries<'_>) -> bool {
        let known = self.0.lock();
        !known.is_empty() && entries.queues.iter().any(|queue| known.contains(*queue))
    }

    /// One of these has a maximum.
    pub(crate) fn suspect(&self, entries: &Entries<'_>) {
        self.0.lock().extend(entries.queues.iter().map(|queue| (*queue).into()));
    }

    /// Of these, those with a maximum are these.
    fn learn(&self, entries: &Entries<'_>, gates: &Gates<'_>) {
        let mut known = self.0.lock();
        for queue in &entries.queues {
            if gates.0.contains_key(queue) {
                known.insert((*queue).into());
            } else {
                known.remove(*queue);
            }
        }
    }
}

impl<'a> Entries<'a> {
    pub(crate) fn of(flush: &'a Flush) -> Self {
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

    /// Fails if one of them has a maximum.
    pub(crate) fn check(&self) -> Query<'static> {
        let params = vec![param(self.names())];
        Query { sql: Sql::Boundless, action: DEPTH_LIMIT_CHECK, params }
    }

    /// Locks and reads the depths of those that have a maximum.
    pub(crate) fn lock(&self) -> Query<'static> {
        Query { sql: Sql::Depths, action: "locking the depths of queues", params: vec![param(self.names())] }
    }
}

/// The depths of the queues that a flush puts something into, locked.
#[derive(Default)]
pub(crate) struct Gates<'a>(BTreeMap<&'a str, Depth>);

impl<'a> Gates<'a> {
    /// What [`Entries::lock`] has answered.
    pub(crate) fn read(entries: &Entries<'a>, depths: &Depths, answer: &QueryResult) -> Result<Self, StoreError> {
        let mut gates = Self::default();
        for row in &answer.rows {
            let mut row = Columns::of(row);
            let (queue, max, bound): (&str, i32, i64) = (row.next()?, row.next()?, row.next()?);
            if let Some(queue) = entries.queues.iter().find(|it| **it == queue) {
                gates.0.insert(queue, Depth::new(max.cast_unsigned(), bound.unsigned_abs()));
            }
        }
        depths.learn(entries, &gates);
        Ok(gates)
    }

    /// Which Starts are refused; or, where that cannot be told yet, what has to be counted first.
    pub(crate) fn refused(&mut self, entries: &Entries<'a>) -> Result<HashSet<usize>, Query<'static>> {
        let mut depths = self.0.clone();
        let mut refused = HashSet::new();
        let mut uncounted = BTreeSet::new();
        for (i, start, queue) in &entries.starts {
            let Some(depth) = depths.get_mut(queue) else { continue };
            if !start.can_be_rejected() {
                depth.admit_unconditionally();
                continue;
            }
            match depth.try_admit() {
                Admission::Admitted => {}
                Admission::Full => drop(refused.insert(*i)),
                Admission::CountFirst => drop(uncounted.insert((*queue).to_owned())),
            }
        }
        if uncounted.is_empty() {
            self.0 = depths;
            return Ok(refused);
        }
        let params = vec![param(uncounted.into_iter().collect::<Vec<_>>())];
        Err(Query { sql: Sql::CountDepths, action: "counting what waits in queues", params })
    }

    /// What was counted of them.
    pub(crate) fn counted(&mut self, answer: &QueryResult) -> Result<(), StoreError> {
        for row in &answer.rows {
            let mut row = Columns::of(row);
            let (queue, waiting): (&str, i64) = (row.next()?, row.next()?);
            if let Some(depth) = self.0.get_mut(queue) {
                depth.set_count(waiting.unsigned_abs());
            }
        }
        Ok(())
    }

    /// Keeps the bounds.
    pub(crate) fn keep(&self) -> Query<'static> {
        let depths: Vec<_> = self.0.iter().collect();
        let params = vec![
            column(&depths, |(queue, _)| (**queue).to_owned()),
            column(&depths, |(_, depth)| i64::try_from(depth.bound()).unwrap_or(i64::MAX)),
        ];
        Query { sql: Sql::KeepDepths, action: "keeping the depths of queues", params }
    }
}
