//! Queues: how they are stored, what of them is ready, and what their limits leave room for.

use std::sync::Arc;

use rusqlite::OptionalExtension;
use stepfast_core::counters::Table;
use stepfast_core::key::Key;
use stepfast_core::queue::{Limits, QueueChange, QueueRow};
use stepfast_core::store::StoreError;
use stepfast_core::turns::Candidate;

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
        let (is_changed, tally) = self.write("changing a queue", |conn| {
            let mut sql = Statements::new(conn);
            let Limits { concurrency, worker_concurrency, key_concurrency } = row.queue.limits;
            let changed = sql.run(
                Sql::SetQueue,
                (
                    &*row.queue.name,
                    row.version,
                    row.changed_at.as_micros(),
                    is_paused,
                    concurrency,
                    worker_concurrency,
                    key_concurrency,
                ),
            )?;
            if changed > 0 && row.queue.limits.has_slots() {
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

/// The key after this one of which executions of a workflow are ready in a queue; the first of all for `None`.
pub(crate) fn next_key(
    sql: &mut Statements<'_>,
    workflow: &str,
    queue: &str,
    after: Option<&str>,
) -> Tried<Option<Arc<str>>> {
    let next = match after {
        None => sql.get(Sql::FirstKey)?.query_row((workflow, queue), |row| Ok(text(row, 0))),
        Some(after) => sql.get(Sql::NextKey)?.query_row((workflow, queue, after), |row| Ok(text(row, 0))),
    };
    next.optional()?.transpose()
}

/// How many more of a queue may run, and at most how many of any one key.
pub(crate) struct Room {
    queue: Arc<str>,
    limits: Limits,
    /// How many more of the queue.
    pub(crate) all: usize,
}

impl Room {
    /// The room in a queue for a worker; `None` if it is paused.
    pub(crate) fn of(sql: &mut Statements<'_>, name: &Arc<str>, worker: i64) -> Tried<Option<Self>> {
        let Some(row) = stored_queue(sql, name)? else {
            return Ok(Some(Self { queue: name.clone(), limits: Limits::default(), all: usize::MAX }));
        };
        if row.is_paused {
            return Ok(None);
        }
        let limits = row.queue.limits;
        let mut all = usize::MAX;
        if limits.concurrency.is_some() || limits.worker_concurrency.is_some() {
            let params = (&**name, worker);
            let (used, here): (u32, u32) =
                sql.get(Sql::Slots)?.query_row(params, |row| Ok((row.get(0)?, row.get(1)?)))?;
            all = left(limits.concurrency, used).min(left(limits.worker_concurrency, here));
        }
        Ok(Some(Self { queue: name.clone(), limits, all }))
    }

    /// How many more of a key may run, as far as the key is concerned.
    pub(crate) fn of_key(&self, sql: &mut Statements<'_>, key: &str) -> Tried<usize> {
        let Some(limit) = self.limits.key_concurrency else { return Ok(usize::MAX) };
        let used = sql.get(Sql::KeySlots)?.query_row((&*self.queue, key), |row| row.get(0))?;
        Ok(left(Some(limit), used))
    }

    /// An execution of the queue runs from here on.
    pub(crate) fn take(&self, sql: &mut Statements<'_>, queue_key: &str, id: Key, worker: i64) -> Tried<()> {
        if self.limits.has_slots() {
            sql.insert(Table::Slots, Sql::Slot, (&*self.queue, queue_key, key(&id), worker))?;
        }
        Ok(())
    }

    /// The queue with its keys of which something of these workflows is ready, in turn after `after`; and whether
    /// limits leave something out.
    pub(crate) fn candidate(
        &self,
        sql: &mut Statements<'_>,
        workflows: &[Arc<str>],
        after: &str,
    ) -> Tried<(Candidate, bool)> {
        // from the key after the last one on, and around
        let mut keys = Vec::new();
        let mut is_limited = self.all == 0;
        let mut has_more_keys = false;
        for (begin, end) in [(Some(after), None), (None, Some(after))] {
            let mut at = begin.map(Arc::from);
            loop {
                let mut next: Option<Arc<str>> = None;
                for workflow in workflows {
                    let found = next_key(sql, workflow, &self.queue, at.as_deref())?;
                    next = next.into_iter().chain(found).min();
                }
                let Some(key) = next.filter(|key| end.is_none_or(|end| **key <= *end)) else { break };
                if keys.len() == KEYS {
                    has_more_keys = true;
                    break;
                }
                let room = self.of_key(sql, &key)?;
                is_limited |= room == 0;
                keys.push((key.clone(), room));
                at = Some(key);
            }
        }
        Ok((Candidate { queue: self.queue.clone(), room: self.all, keys, has_more_keys }, is_limited))
    }
}

fn left(limit: Option<u32>, used: u32) -> usize {
    limit.map_or(usize::MAX, |limit| limit.saturating_sub(used) as usize)
}
