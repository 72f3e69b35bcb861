//! [`Room`]: what the limits of a queue leave room for.

use std::sync::Arc;

use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::fairness::ReadyQueue;
use stepfast_core::queue::rate::{Rate, RateUsage, ClaimScope};
use stepfast_core::queue::{Limits, remaining};
use stepfast_core::store::counters::Table;

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::key;
use crate::rows::queues::{next_key, stored_queue};

/// Most keys of a queue that one claim looks at.
const KEYS: usize = 1_000;

/// How many more of a queue may run, and at most how many of any one key.
pub(crate) struct Room {
    pub(crate) queue: Arc<str>,
    limits: Limits,
    now: Timestamp,
    pub(crate) which: ClaimScope,
    /// How many more of the queue.
    pub(crate) all: usize,
    /// True if more is ready than its concurrency allows for.
    pub(crate) is_limited: bool,
    /// When its rates allow for more, where they do not now.
    pub(crate) again_at: Option<Timestamp>,
}

impl Room {
    /// The room in a queue for a worker; `None` if it is paused.
    pub(crate) fn of(
        sql: &mut Statements<'_>,
        name: &Arc<str>,
        worker: i64,
        now: Timestamp,
    ) -> DbResult<Option<Self>> {
        let row = stored_queue(sql, name)?;
        if row.as_ref().is_some_and(|row| row.is_paused) {
            return Ok(None);
        }
        let limits = row.map(|row| row.queue.limits).unwrap_or_default();
        let which = if limits.has_rate() { ClaimScope::Starting } else { ClaimScope::All };
        let mut room = Self {
            queue: name.clone(),
            limits,
            now,
            which,
            all: usize::MAX,
            is_limited: false,
            again_at: None,
        };
        let limits = &room.limits;
        if limits.concurrency.is_some() || limits.worker_concurrency.is_some() {
            let params = (&**name, worker);
            let (used, here): (u32, u32) =
                sql.get(Sql::Slots)?.query_row(params, |row| Ok((row.get(0)?, row.get(1)?)))?;
            room.all =
                remaining(limits.concurrency, used.into()).min(remaining(limits.worker_concurrency, here.into()));
            room.is_limited = room.all == 0;
        }
        Ok(Some(room))
    }

    /// Looks whether something of these workflows has waited: then that comes by itself. If nothing has, the rate counts.
    pub(crate) fn choose(&mut self, sql: &mut Statements<'_>, workflows: &[Arc<str>]) -> DbResult<()> {
        if self.which == ClaimScope::All {
            return Ok(());
        }
        for workflow in workflows {
            if sql.exists(Sql::HasWoken, (&**workflow, &*self.queue))? {
                self.which = ClaimScope::Woken;
                return Ok(());
            }
        }
        let allowed = self.allowed(sql, self.limits.rate, None)?;
        self.all = self.all.min(allowed);
        Ok(())
    }

    /// How many more of a key may run, as far as the key is concerned.
    pub(crate) fn of_key(&mut self, sql: &mut Statements<'_>, key: &str) -> DbResult<usize> {
        let mut room = usize::MAX;
        if let Some(limit) = self.limits.key_concurrency {
            let used: u32 = sql.get(Sql::KeySlots)?.query_row((&*self.queue, key), |row| row.get(0))?;
            room = remaining(Some(limit), used.into());
            self.is_limited |= room == 0;
        }
        if self.which == ClaimScope::Starting {
            room = room.min(self.allowed(sql, self.limits.key_rate, Some(key))?);
        }
        Ok(room)
    }

    /// What a rate allows for now, of the queue or of one of its keys.
    fn allowed(&mut self, sql: &mut Statements<'_>, rate: Option<Rate>, key: Option<&str>) -> DbResult<usize> {
        let Some(rate) = rate else { return Ok(usize::MAX) };
        let allowance = rate.allowance(&self.used(sql, &rate, key)?, self.now);
        if allowance.starts == 0 {
            self.again_at = self.again_at.into_iter().chain(allowance.more_at).min();
        }
        Ok(allowance.starts)
    }

    fn used(&self, sql: &mut Statements<'_>, rate: &Rate, key: Option<&str>) -> DbResult<RateUsage> {
        let after = rate.window_start(self.now).as_micros();
        let params = (&*self.queue, key.is_some(), key.unwrap_or_default(), after);
        let used = sql.get(Sql::Used)?.query_row(params, |row| {
            let at = |at: Option<i64>| at.map(Timestamp::from_micros);
            Ok(RateUsage {
                starts: row.get::<_, i64>(0)? as u64,
                first_at: at(row.get(1)?),
                last_at: at(row.get(2)?),
            })
        })?;
        Ok(used)
    }

    /// An execution of the queue runs from here on.
    pub(crate) fn take(&self, sql: &mut Statements<'_>, queue_key: &str, id: Key, worker: i64) -> DbResult<()> {
        if self.limits.has_slots() {
            sql.insert(Table::Slots, Sql::Slot, (&*self.queue, queue_key, key(&id), worker))?;
        }
        Ok(())
    }

    /// So many executions of a key have begun.
    pub(crate) fn began(&self, sql: &mut Statements<'_>, queue_key: &str, starts: usize) -> DbResult<()> {
        if self.which != ClaimScope::Starting || starts == 0 {
            return Ok(());
        }
        for (rate, key) in [(self.limits.rate, None), (self.limits.key_rate, Some(queue_key))] {
            let Some(rate) = rate else { continue };
            let entry = rate.entry(&self.used(sql, &rate, key)?, self.now, starts);
            let (is_key, key) = (key.is_some(), key.unwrap_or_default());
            sql.run(Sql::ForgetStarts, (&*self.queue, is_key, key, entry.prune_until.as_micros()))?;
            let params = (&*self.queue, is_key, key, entry.at.as_micros(), entry.starts as i64);
            sql.run(Sql::EnterStarts, params)?;
        }
        Ok(())
    }

    /// The queue with its keys of which something of these workflows is ready, in turn after `after`.
    pub(crate) fn candidate(
        &mut self,
        sql: &mut Statements<'_>,
        workflows: &[Arc<str>],
        after: &str,
    ) -> DbResult<ReadyQueue> {
        let mut keys = Vec::new();
        let mut has_more_keys = false;
        // from the key after the last one on, and around
        for (begin, end) in [(Some(after), None), (None, Some(after))] {
            let mut at = begin.map(Arc::from);
            loop {
                let mut next: Option<Arc<str>> = None;
                for workflow in workflows {
                    let found = next_key(sql, workflow, &self.queue, at.as_deref(), self.which)?;
                    next = next.into_iter().chain(found).min();
                }
                let Some(key) = next.filter(|key| end.is_none_or(|end| **key <= *end)) else { break };
                if keys.len() == KEYS {
                    has_more_keys = true;
                    break;
                }
                let room = self.of_key(sql, &key)?;
                keys.push((key.clone(), room));
                at = Some(key);
            }
        }
        Ok(ReadyQueue {
            queue: self.queue.clone(),
            capacity: self.all,
            keys,
            has_more_keys,
            weights: self.limits.key_weights.clone(),
        })
    }
}
