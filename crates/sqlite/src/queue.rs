//! Queues: how they are stored, what of them is ready, and what their limits leave room for.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::depth::{Depth, Entry};
use stepfast_core::queue::fairness::Candidate;
use stepfast_core::queue::rate::{Rate, Used, Which};
use stepfast_core::queue::{Limits, QueueChange, QueueRow, left};
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Start, StoreError};

use crate::error::Tried;
use crate::row::{key, queue, text};
use crate::statements::{Sql, Statements};
use crate::writer::Inner;

/// Most keys of a queue that one claim looks at.
const KEYS: usize = 1_000;

impl Inner {
    /// See [`Store::change_queue`](stepfast_core::Store::change_queue).
    pub(crate) fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let QueueChange { queue, is_paused, seen_version } = change.clone();
        let row = QueueRow { queue, is_paused, version: seen_version + 1, changed_at: self.now() };
        let (is_changed, tally) = self.write_patiently("changing a queue", |conn| {
            let mut sql = Statements::new(conn);
            let before =
                stored_queue(&mut sql, &row.queue.name)?.map(|row| row.queue.limits).unwrap_or_default();
            let Limits {
                concurrency,
                worker_concurrency,
                key_concurrency,
                rate,
                key_rate,
                max_depth,
                key_weights,
            } = row.queue.limits.clone();
            if (before.rate, before.key_rate) != (rate, key_rate) {
                // another rate begins anew
                sql.run(Sql::ForgetRates, [&*row.queue.name])?;
            }
            let params = params![
                &*row.queue.name,
                row.version,
                row.changed_at.as_micros(),
                is_paused,
                concurrency,
                worker_concurrency,
                key_concurrency,
                rate.map(|rate| rate.starts),
                rate.map(|rate| rate.period_ms() as i64),
                rate.and_then(|rate| rate.burst),
                key_rate.map(|rate| rate.starts),
                key_rate.map(|rate| rate.period_ms() as i64),
                key_rate.and_then(|rate| rate.burst),
                max_depth,
                key_weights.to_json(),
            ];
            let changed = sql.run(Sql::SetQueue, params)?;
            if changed > 0 && row.queue.limits.has_slots() && !before.has_slots() {
                sql.insert(Table::Slots, Sql::RunningIn, [&*row.queue.name])?;
            }
            Ok((changed > 0, sql.tally))
        })?;
        tally.add_to(&self.counters);
        self.shared.announce(self.listener.id);
        Ok(is_changed.then_some(row))
    }

    /// See [`Store::queues`](stepfast_core::Store::queues).
    pub(crate) fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        self.counters.read();
        self.read("listing queues", |conn| {
            let mut statement = conn.prepare_cached(include_str!("../queries/queues.sql"))?;
            let mut rows = statement.query([])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let row = queue(row)?;
                if names.is_none_or(|names| names.contains(&row.queue.name)) {
                    found.push(row);
                }
            }
            Ok(found)
        })
    }
}

/// What a flush has to know of a queue that something is put into.
#[derive(Clone, Copy)]
pub(crate) struct Gate {
    /// What is put into it may begin at once.
    pub(crate) lets_begin: bool,
    /// How many wait in it, where that is limited; as it was when the flush began, and as it is now.
    depth: Option<(Depth, Depth)>,
}

impl Gate {
    /// Of the queue of this name.
    pub(crate) fn of(sql: &mut Statements<'_>, name: &str) -> Tried<Self> {
        let Some(row) = stored_queue(sql, name)? else { return Ok(Self { lets_begin: false, depth: None }) };
        let mut depth = None;
        if let Some(max) = row.queue.limits.max_depth {
            let bound: i64 = sql.get(Sql::DepthBound)?.query_row([name], |row| row.get(0))?;
            let stored = Depth::new(max, bound.unsigned_abs());
            depth = Some((stored, stored));
        }
        Ok(Self { lets_begin: row.lets_begin(), depth })
    }

    /// One more is put into it; false if it is full.
    pub(crate) fn enter(&mut self, sql: &mut Statements<'_>, start: &Start, name: &str) -> Tried<bool> {
        let Some((_, depth)) = &mut self.depth else { return Ok(true) };
        if !start.is_refusable() {
            depth.enter_anyway();
            return Ok(true);
        }
        let mut entry = depth.enter();
        if entry == Entry::Count {
            let waiting: i64 = sql.get(Sql::CountDepth)?.query_row([name], |row| row.get(0))?;
            depth.counted(waiting.unsigned_abs());
            entry = depth.enter();
        }
        Ok(entry == Entry::Admitted)
    }

    /// What is to be stored of it, where that has changed.
    pub(crate) fn bound(&self) -> Option<i64> {
        let (stored, depth) = self.depth?;
        (stored.bound() != depth.bound()).then(|| i64::try_from(depth.bound()).unwrap_or(i64::MAX))
    }
}

/// A queue as it is stored, if it was declared.
pub(crate) fn stored_queue(sql: &mut Statements<'_>, name: &str) -> Tried<Option<QueueRow>> {
    sql.get(Sql::Queue)?.query_row([name], |row| Ok(queue(row))).optional()?.transpose()
}

/// The queues in which executions of a workflow are ready; goes from one to the next, however many each has.
pub(crate) fn ready_queues(sql: &mut Statements<'_>, workflow: &str) -> Tried<Vec<Arc<str>>> {
    let mut found: Vec<Arc<str>> = Vec::new();
    loop {
        let after = found.last().map_or("", |last| &**last);
        let next = sql.get(Sql::NextQueue)?.query_row((workflow, after), |row| Ok(text(row, 0)));
        match next.optional()?.transpose()? {
            Some(queue) => found.push(queue),
            None => return Ok(found),
        }
    }
}

/// The key after this one of which executions of a workflow are ready in a queue; the first of all for `None`. Only of
/// those that have waited, where it says so.
pub(crate) fn next_key(
    sql: &mut Statements<'_>,
    workflow: &str,
    queue: &str,
    after: Option<&str>,
    which: Which,
) -> Tried<Option<Arc<str>>> {
    let (first, next) = match which {
        Which::Woken => (Sql::FirstWokenKey, Sql::NextWokenKey),
        Which::All | Which::Starts => (Sql::FirstKey, Sql::NextKey),
    };
    let next = match after {
        None => sql.get(first)?.query_row((workflow, queue), |row| Ok(text(row, 0))),
        Some(after) => sql.get(next)?.query_row((workflow, queue, after), |row| Ok(text(row, 0))),
    };
    next.optional()?.transpose()
}

/// How many more of a queue may run, and at most how many of any one key.
pub(crate) struct Room {
    pub(crate) queue: Arc<str>,
    limits: Limits,
    now: Timestamp,
    pub(crate) which: Which,
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
    ) -> Tried<Option<Self>> {
        let row = stored_queue(sql, name)?;
        if row.as_ref().is_some_and(|row| row.is_paused) {
            return Ok(None);
        }
        let limits = row.map(|row| row.queue.limits).unwrap_or_default();
        let which = if limits.has_rate() { Which::Starts } else { Which::All };
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
                left(limits.concurrency, used.into()).min(left(limits.worker_concurrency, here.into()));
            room.is_limited = room.all == 0;
        }
        Ok(Some(room))
    }

    /// Looks whether something of these workflows has waited: then that comes by itself. If nothing has, the rate counts.
    pub(crate) fn choose(&mut self, sql: &mut Statements<'_>, workflows: &[Arc<str>]) -> Tried<()> {
        if self.which == Which::All {
            return Ok(());
        }
        for workflow in workflows {
            if sql.exists(Sql::HasWoken, (&**workflow, &*self.queue))? {
                self.which = Which::Woken;
                return Ok(());
            }
        }
        let allowed = self.allowed(sql, self.limits.rate, None)?;
        self.all = self.all.min(allowed);
        Ok(())
    }

    /// How many more of a key may run, as far as the key is concerned.
    pub(crate) fn of_key(&mut self, sql: &mut Statements<'_>, key: &str) -> Tried<usize> {
        let mut room = usize::MAX;
        if let Some(limit) = self.limits.key_concurrency {
            let used: u32 = sql.get(Sql::KeySlots)?.query_row((&*self.queue, key), |row| row.get(0))?;
            room = left(Some(limit), used.into());
            self.is_limited |= room == 0;
        }
        if self.which == Which::Starts {
            room = room.min(self.allowed(sql, self.limits.key_rate, Some(key))?);
        }
        Ok(room)
    }

    /// What a rate allows for now, of the queue or of one of its keys.
    fn allowed(&mut self, sql: &mut Statements<'_>, rate: Option<Rate>, key: Option<&str>) -> Tried<usize> {
        let Some(rate) = rate else { return Ok(usize::MAX) };
        let allowance = rate.allowance(&self.used(sql, &rate, key)?, self.now);
        if allowance.starts == 0 {
            self.again_at = self.again_at.into_iter().chain(allowance.more_at).min();
        }
        Ok(allowance.starts)
    }

    fn used(&self, sql: &mut Statements<'_>, rate: &Rate, key: Option<&str>) -> Tried<Used> {
        let after = rate.counts_after(self.now).as_micros();
        let params = (&*self.queue, key.is_some(), key.unwrap_or_default(), after);
        let used = sql.get(Sql::Used)?.query_row(params, |row| {
            let at = |at: Option<i64>| at.map(Timestamp::from_micros);
            Ok(Used {
                starts: row.get::<_, i64>(0)? as u64,
                first_at: at(row.get(1)?),
                last_at: at(row.get(2)?),
            })
        })?;
        Ok(used)
    }

    /// An execution of the queue runs from here on.
    pub(crate) fn take(&self, sql: &mut Statements<'_>, queue_key: &str, id: Key, worker: i64) -> Tried<()> {
        if self.limits.has_slots() {
            sql.insert(Table::Slots, Sql::Slot, (&*self.queue, queue_key, key(&id), worker))?;
        }
        Ok(())
    }

    /// So many executions of a key have begun.
    pub(crate) fn began(&self, sql: &mut Statements<'_>, queue_key: &str, starts: usize) -> Tried<()> {
        if self.which != Which::Starts || starts == 0 {
            return Ok(());
        }
        for (rate, key) in [(self.limits.rate, None), (self.limits.key_rate, Some(queue_key))] {
            let Some(rate) = rate else { continue };
            let entry = rate.entry(&self.used(sql, &rate, key)?, self.now, starts);
            let (is_key, key) = (key.is_some(), key.unwrap_or_default());
            sql.run(Sql::ForgetStarts, (&*self.queue, is_key, key, entry.forget_until.as_micros()))?;
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
    ) -> Tried<Candidate> {
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
        Ok(Candidate {
            queue: self.queue.clone(),
            room: self.all,
            keys,
            has_more_keys,
            weights: self.limits.key_weights.clone(),
        })
    }
}
