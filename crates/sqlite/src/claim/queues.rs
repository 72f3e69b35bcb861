//! [`QueueState`]: the limits of a queue, and the capacity that they leave at the time of a claim.

use std::sync::Arc;

use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::fairness::ReadyQueue;
use stepfast_core::queue::rate::{ClaimScope, Rate, RateUsage};
use stepfast_core::queue::{Limits, remaining};
use stepfast_core::store::Route;
use stepfast_core::store::counters::Table;

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::queues::{next_ready_key, read_queue};
use crate::rows::{key_bytes, text};

/// Maximum number of queue keys that one claim considers in a queue.
const MAX_KEYS_PER_QUEUE: usize = 1_000;

/// The limits and the remaining capacity of a queue, as a claim finds them.
pub(crate) struct QueueState {
    pub(crate) name: Arc<str>,
    limits: Limits,
    now: Timestamp,
    /// The executions that the claim may take.
    pub(crate) scope: ClaimScope,
    /// Number of further executions of the queue that may run.
    pub(crate) capacity: usize,
    /// Whether concurrency limits leave ready executions unclaimed.
    pub(crate) is_limited: bool,
    /// Time at which the rates allow further starts; `None` if they allow some now.
    pub(crate) retry_at: Option<Timestamp>,
}

impl QueueState {
    /// Reads the state of a queue for a worker; `None` if the queue is paused.
    pub(crate) fn read(
        sql: &mut Statements<'_>,
        name: &Arc<str>,
        worker: i64,
        now: Timestamp,
    ) -> DbResult<Option<Self>> {
        let row = read_queue(sql, name)?;
        if row.as_ref().is_some_and(|row| row.is_paused) {
            return Ok(None);
        }
        let limits = row.map(|row| row.queue.limits).unwrap_or_default();
        let scope = if limits.has_rate() { ClaimScope::Starting } else { ClaimScope::All };
        let mut state = Self {
            name: name.clone(),
            limits,
            now,
            scope,
            capacity: usize::MAX,
            is_limited: false,
            retry_at: None,
        };
        let limits = &state.limits;
        if limits.concurrency.is_some() || limits.worker_concurrency.is_some() {
            let params = (&**name, worker);
            let (slots, worker_slots): (u32, u32) =
                sql.get(Sql::CountSlots)?.query_row(params, |row| Ok((row.get(0)?, row.get(1)?)))?;
            state.capacity = remaining(limits.concurrency, slots.into())
                .min(remaining(limits.worker_concurrency, worker_slots.into()));
            state.is_limited = state.capacity == 0;
        }
        Ok(Some(state))
    }

    /// Whether two concurrent claims could together exceed the limits of the queue.
    pub(crate) fn serializes_claims(&self) -> bool {
        self.limits.serializes_claims()
    }

    /// Chooses the scope of the claim in a queue with a rate. If one of the queue's routes has a woken execution, the
    /// claim takes only woken executions. Otherwise the claim takes executions that have not begun, as many
    /// as the rate allows.
    pub(crate) fn choose_scope(&mut self, sql: &mut Statements<'_>, routes: &[Route]) -> DbResult<()> {
        if self.scope == ClaimScope::All {
            return Ok(());
        }
        for route in routes {
            if sql.exists(Sql::HasWoken, [route.as_str()])? {
                self.scope = ClaimScope::Woken;
                return Ok(());
            }
        }
        let allowed = self.rate_allowance(sql, self.limits.rate, None)?;
        self.capacity = self.capacity.min(allowed);
        Ok(())
    }

    /// Returns the number of further executions that the limits per queue key allow for a key.
    pub(crate) fn key_capacity(&mut self, sql: &mut Statements<'_>, key: &str) -> DbResult<usize> {
        let mut capacity = usize::MAX;
        if let Some(limit) = self.limits.key_concurrency {
            let slots: u32 = sql.get(Sql::CountKeySlots)?.query_row((&*self.name, key), |row| row.get(0))?;
            capacity = remaining(Some(limit), slots.into());
            self.is_limited |= capacity == 0;
        }
        if self.scope == ClaimScope::Starting {
            capacity = capacity.min(self.rate_allowance(sql, self.limits.key_rate, Some(key))?);
        }
        Ok(capacity)
    }

    /// Returns the number of starts that a rate of the queue, or of one of its keys, allows now.
    fn rate_allowance(
        &mut self,
        sql: &mut Statements<'_>,
        rate: Option<Rate>,
        key: Option<&str>,
    ) -> DbResult<usize> {
        let Some(rate) = rate else { return Ok(usize::MAX) };
        let allowance = rate.allowance(&self.rate_usage(sql, &rate, key)?, self.now);
        if allowance.starts == 0 {
            self.retry_at = self.retry_at.into_iter().chain(allowance.more_at).min();
        }
        Ok(allowance.starts)
    }

    /// Reads the starts of the queue, or of one of its keys, that count for a rate.
    fn rate_usage(&self, sql: &mut Statements<'_>, rate: &Rate, key: Option<&str>) -> DbResult<RateUsage> {
        let window_start = rate.window_start(self.now).as_micros();
        let params = (&*self.name, key.is_some(), key.unwrap_or_default(), window_start);
        let usage = sql.get(Sql::RateUsage)?.query_row(params, |row| {
            let time = |micros: Option<i64>| micros.map(Timestamp::from_micros);
            Ok(RateUsage {
                starts: row.get::<_, i64>(0)? as u64,
                first_at: time(row.get(1)?),
                last_at: time(row.get(2)?),
            })
        })?;
        Ok(usage)
    }

    /// Takes a slot for an execution that runs from now on, if the queue has slots.
    pub(crate) fn take_slot(
        &self,
        sql: &mut Statements<'_>,
        queue_key: &str,
        id: Key,
        worker: i64,
    ) -> DbResult<()> {
        if self.limits.has_slots() {
            sql.insert(Table::Slots, Sql::TakeSlot, (&*self.name, queue_key, key_bytes(&id), worker))?;
        }
        Ok(())
    }

    /// Records a number of starts with a queue key, which count for the rates.
    pub(crate) fn record_starts(
        &self,
        sql: &mut Statements<'_>,
        queue_key: &str,
        starts: usize,
    ) -> DbResult<()> {
        if self.scope != ClaimScope::Starting || starts == 0 {
            return Ok(());
        }
        for (rate, key) in [(self.limits.rate, None), (self.limits.key_rate, Some(queue_key))] {
            let Some(rate) = rate else { continue };
            let entry = rate.entry(&self.rate_usage(sql, &rate, key)?, self.now, starts);
            let (is_key, key) = (key.is_some(), key.unwrap_or_default());
            let until = entry.prune_until.as_micros();
            sql.run(Sql::DeleteOldStarts, (&*self.name, is_key, key, until))?;
            if is_key {
                let mut idle: Vec<(Arc<str>, i64)> = Vec::new();
                let mut rows = sql.get(Sql::IdleStarts)?.query((&*self.name, until))?;
                while let Some(row) = rows.next()? {
                    idle.push((text(row, 0)?, row.get(1)?));
                }
                drop(rows);
                for (key, at) in idle {
                    sql.run(Sql::DeleteOldStarts, (&*self.name, is_key, &*key, at))?;
                }
            }
            let params = (&*self.name, is_key, key, entry.at.as_micros(), entry.starts as i64);
            sql.run(Sql::RecordStarts, params)?;
        }
        Ok(())
    }

    /// Returns the queue with the keys that have ready executions of these routes, in cyclic order after `after`. A claim
    /// takes at most `limit` executions, so at most as many keys can get a turn.
    pub(crate) fn ready_queue(
        &mut self,
        sql: &mut Statements<'_>,
        routes: &[Route],
        after: &str,
        limit: usize,
    ) -> DbResult<ReadyQueue> {
        let (mut keys, mut free_keys) = (Vec::new(), 0);
        let mut has_more_keys = false;
        // first the keys after `after`, then the keys from the beginning up to `after`
        for (begin, end) in [(Some(after), None), (None, Some(after))] {
            let mut position = begin.map(Arc::from);
            loop {
                let mut next: Option<Arc<str>> = None;
                for route in routes {
                    let found = next_ready_key(sql, route, position.as_deref(), self.scope)?;
                    next = next.into_iter().chain(found).min();
                }
                let Some(key) = next.filter(|key| end.is_none_or(|end| **key <= *end)) else { break };
                if keys.len() == MAX_KEYS_PER_QUEUE || free_keys == limit.min(self.capacity) {
                    has_more_keys = true;
                    break;
                }
                let capacity = self.key_capacity(sql, &key)?;
                free_keys += usize::from(capacity > 0);
                keys.push((key.clone(), capacity));
                position = Some(key);
            }
        }
        Ok(ReadyQueue {
            queue: self.name.clone(),
            capacity: self.capacity,
            keys,
            has_more_keys,
            weights: self.limits.key_weights.clone(),
        })
    }
}
