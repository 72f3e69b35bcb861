//! Claiming: executions whose timer is due, then what is ready, queue by queue and key by key.

pub(crate) mod inbox;
pub(crate) mod queues;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::queue::fairness::{Allocation, FairShare};
use stepfast_core::queue::rate::ClaimScope;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Claim, ClaimReply, Status, StoreError, WorkerId, is_same_version};

use crate::claim::inbox::receive;
use crate::claim::queues::Room;
use crate::conn::statements::{Sql, Statements, Tally};
use crate::database::{Database, check_fence};
use crate::error::DbResult;
use crate::file_share::FileShare;
use crate::rows::queues::ready_queues;
use crate::rows::{execution, key, key_of, maybe_text, status_of, text};
use crate::{read, rows};

/// Rows fetched at a time while looking for candidates.
const PAGE: usize = 64;

impl Database {
    /// Claims in one transaction, on the calling thread.
    pub(crate) fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let (claimed, tally): (ClaimReply, Tally) = self.write("claiming executions", |conn| {
            let mut sql = Statements::new(conn);
            check_fence(&mut sql, claim.worker.0, claim.lane, claim.epoch)?;
            let (shared, now, claimed) = (&self.share, self.now(), ClaimReply::default());
            let mut claiming = Claiming { sql, shared, claim, now, claimed, bytes: 0 };
            if claim.from_quarantine {
                claiming.quarantined()?;
            } else {
                receive(&mut claiming.sql, shared, now)?;
                claiming.due()?;
                claiming.ready(&mut self.fair_share.lock())?;
            }
            Ok((claiming.claimed, claiming.sql.tally))
        })?;
        tally.add_to(&self.counters);
        if !claimed.records.is_empty() {
            self.counters.add_claim();
        }
        Ok(claimed)
    }
}

/// True if who claims can run executions of this workflow that are pinned to this version.
fn can_run(claim: &Claim, workflow: &str, app_version: Option<&str>) -> bool {
    let has_workflow = claim.workflows.iter().any(|name| **name == *workflow);
    has_workflow && is_same_version(claim.app_version.as_deref(), app_version)
}

struct Claiming<'c, 'a> {
    sql: Statements<'c>,
    shared: &'a FileShare,
    claim: &'a Claim,
    now: Timestamp,
    claimed: ClaimReply,
    bytes: usize,
}

/// The place of a row in its key: priority, seq, execution.
type Spot = (i64, i64, Key);

impl Claiming<'_, '_> {
    fn is_full(&self) -> bool {
        self.claimed.records.len() >= self.claim.limit || self.bytes > self.claim.max_bytes
    }

    /// Takes suspended executions whose time has come, earliest first. What stands in a queue of its own stands there
    /// again.
    fn due(&mut self) -> DbResult<()> {
        let mut after = (i64::MIN, Key::default());
        while !self.is_full() {
            let mut page = Vec::with_capacity(PAGE);
            let mut rows =
                self.sql.get(Sql::Due)?.query((after.0, key(&after.1), self.now.as_micros(), PAGE as i64))?;
            while let Some(row) = rows.next()? {
                let queue = maybe_text(row, 4)?;
                let is_ours = can_run(self.claim, &text(row, 2)?, maybe_text(row, 3)?.as_deref())
                    && self.claim.serves(queue.as_deref().unwrap_or(DEFAULT_QUEUE));
                page.push((
                    row.get::<_, i64>(0)?,
                    key_of(row, 1)?,
                    status_of(row, 5)?.filter(|_| is_ours),
                    queue.is_some(),
                ));
            }
            drop(rows);
            let Some((due_at, last, ..)) = page.last() else { return Ok(()) };
            after = (*due_at, *last);
            for (_, id, status, has_queue) in page {
                if self.is_full() {
                    return Ok(());
                }
                let Some(status) = status else { continue };
                let has_begun = status == Status::Waiting;
                if if has_queue { self.admit(id, status)? } else { self.take(id, status, has_begun)? } {
                    self.sql.delete(Table::Timers, Sql::Untimer, [key(&id)])?;
                    self.sql.delete(Table::Waits, Sql::Unwait, [key(&id)])?;
                }
            }
        }
        Ok(())
    }

    fn admit(&mut self, id: Key, status: Status) -> DbResult<bool> {
        let admit = if status == Status::Scheduled { Sql::AdmitNew } else { Sql::Admit };
        if self.sql.update(Table::Executions, admit, [key(&id)])? == 0 {
            return Ok(false);
        }
        if status == Status::Scheduled {
            self.sql.insert(Table::Ready, Sql::ReadyNow, (key(&id), self.shared.next_seq(self.now)))?;
        } else {
            self.sql.insert(Table::Ready, Sql::ReadyAs, (key(&id), true))?;
        }
        Ok(true)
    }

    /// Takes what may be tried of the quarantine, the longest in it first.
    fn quarantined(&mut self) -> DbResult<()> {
        let version = self.claim.app_version.as_deref();
        let mut rows = self.sql.get(Sql::Quarantined)?.query((self.now.as_micros(), version))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            if self.claim.workflows.contains(&text(row, 2)?) {
                found.push((key_of(row, 1)?, maybe_text(row, 3)?, maybe_text(row, 4)?.unwrap_or_default()));
            }
        }
        drop(rows);
        for (id, queue, queue_key) in found {
            if self.claimed.records.len() >= self.claim.limit {
                break;
            }
            let queue = queue.unwrap_or_else(|| DEFAULT_QUEUE.into());
            let room = Room::of(&mut self.sql, &queue, self.claim.worker.0, self.now)?;
            let Some(mut room) = room.filter(|_| self.claim.serves(&queue)) else { continue };
            // none of them has waited
            room.choose(&mut self.sql, &[])?;
            if room.all == 0 || room.of_key(&mut self.sql, &queue_key)? == 0 {
                continue;
            }
            if self.take(id, Status::Queued, true)? {
                room.take(&mut self.sql, &queue_key, id, self.claim.worker.0)?;
                room.began(&mut self.sql, &queue_key, 1)?;
            }
            // also if there was nothing to take: the row is stale then
            self.sql.run(Sql::Unquarantine, [key(&id)])?;
        }
        if let [only] = self.claimed.records.as_slice() {
            self.sql.run(Sql::TakeAlone, [key(&only.execution.key)])?;
        }
        Ok(())
    }

    /// Takes of each queue and key what its turn and its limits allow for.
    fn ready(&mut self, turns: &mut FairShare) -> DbResult<()> {
        if self.is_full() {
            return Ok(());
        }
        let workflows = self.claim.workflows.clone();
        let mut queues = BTreeSet::new();
        for workflow in workflows.iter() {
            queues.extend(ready_queues(&mut self.sql, workflow)?);
        }
        queues.retain(|queue| self.claim.serves(queue));
        let woken = self.ready_of(turns, queues, false)?;
        if woken.is_empty() {
            return Ok(());
        }
        // the places that what has waited has left are those of the starts
        if self.is_full() {
            self.claimed.has_more = true;
        } else {
            self.ready_of(turns, woken, true)?;
        }
        Ok(())
    }

    /// The same of these queues: of those with a rate what has waited, where there is something like that, unless the
    /// starts have their turn. Returns the queues of which only what has waited was taken.
    fn ready_of(
        &mut self,
        turns: &mut FairShare,
        queues: BTreeSet<Arc<str>>,
        are_starts: bool,
    ) -> DbResult<BTreeSet<Arc<str>>> {
        let workflows = self.claim.workflows.clone();
        let mut rooms = Vec::with_capacity(queues.len());
        let mut candidates = Vec::with_capacity(queues.len());
        for queue in queues {
            let Some(mut room) = Room::of(&mut self.sql, &queue, self.claim.worker.0, self.now)? else {
                continue;
            };
            room.choose(&mut self.sql, if are_starts { &[] } else { &workflows })?;
            candidates.push(room.candidate(&mut self.sql, &workflows, &turns.last_key(&queue))?);
            self.claimed.is_limited |= room.is_limited;
            self.claimed.retry_at = self.claimed.retry_at.into_iter().chain(room.again_at).min();
            rooms.push(room);
        }
        let mut all = rooms.iter().zip(&candidates).peekable();
        for portion in turns.allocate(&candidates, self.claim.limit - self.claimed.records.len()) {
            while all.next_if(|(_, candidate)| candidate.queue != portion.queue).is_some() {}
            let Some((room, _)) = all.peek() else { break };
            self.take_portion(&portion, room)?;
        }
        let woken = rooms.iter().filter(|room| room.which == ClaimScope::Woken);
        Ok(woken.map(|room| room.queue.clone()).collect())
    }

    /// Takes the first ready executions of a key, over all workflows.
    fn take_portion(&mut self, portion: &Allocation, room: &Room) -> DbResult<()> {
        let workflows = self.claim.workflows.clone();
        // a page of each workflow, refilled when used up: nothing is read of workflows that are not ours
        let mut pages: Vec<(&str, VecDeque<Spot>)> = Vec::with_capacity(workflows.len());
        for workflow in workflows.iter() {
            pages.push((workflow, self.page(portion, room, workflow, (i64::MIN, i64::MIN, Key::default()))?));
        }
        let mut taken = 0;
        while !self.is_full() {
            let first = pages.iter_mut().filter(|(_, page)| !page.is_empty()).min_by_key(|(_, page)| page[0]);
            let Some((workflow, page)) = first else { break };
            if taken == portion.limit {
                // of a rate another claim tells when there is more
                self.claimed.has_more |= portion.is_truncated || room.which == ClaimScope::Starting;
                self.claimed.is_limited |= !portion.is_truncated;
                break;
            }
            let Some(spot) = page.pop_front() else { break };
            if page.is_empty() {
                *page = self.page(portion, room, workflow, spot)?;
            }
            let (_, seq, id) = spot;
            // of what has not begun nothing can be recorded
            if self.take(id, Status::Queued, seq < 0)? {
                room.take(&mut self.sql, &portion.key, id, self.claim.worker.0)?;
                taken += 1;
            }
            // also if there was nothing to take: the row is stale then
            self.sql.delete(Table::Ready, Sql::Unready, [key(&id)])?;
        }
        room.began(&mut self.sql, &portion.key, taken)
    }

    fn page(&mut self, portion: &Allocation, room: &Room, workflow: &str, after: Spot) -> DbResult<VecDeque<Spot>> {
        let limit = PAGE.min(portion.limit.saturating_add(1));
        // what has waited has an index of its own
        let sql = if room.which == ClaimScope::Woken { Sql::WokenOf } else { Sql::ReadyOf };
        let params = params![
            workflow,
            &*portion.queue,
            &*portion.key,
            after.0,
            after.1,
            key(&after.2),
            limit as i64,
            self.claim.app_version.as_deref(),
            room.which.is_woken(),
        ];
        let mut rows = self.sql.get(sql)?.query(params)?;
        let mut page = VecDeque::with_capacity(limit);
        while let Some(row) = rows.next()? {
            page.push_back((row.get(0)?, row.get(1)?, key_of(row, 2)?));
        }
        Ok(page)
    }

    /// Takes one execution if it is in this status and not parked, with what is recorded of it if it has begun.
    fn take(&mut self, id: Key, status: Status, has_begun: bool) -> DbResult<bool> {
        let statement = self.sql.get(Sql::Execution)?;
        let found =
            statement.query_row([key(&id)], |row| Ok(execution(row, true))).optional()?.transpose()?;
        let Some(mut execution) = found.filter(|found| found.status == status && !found.is_parked) else {
            return Ok(false);
        };
        read::fetch_both(&mut self.sql, &mut execution)?;
        self.sql.update(Table::Executions, Sql::Take, (key(&id), self.claim.worker.0))?;
        if execution.run_timeout.is_some() {
            execution.begin(self.now);
            let params = (key(&id), execution.deadline_at.map(Timestamp::as_micros));
            self.sql.run(Sql::Begin, params)?;
        }
        execution.status = Status::Running;
        execution.owner = Some(WorkerId(self.claim.worker.0));
        execution.wake_at = None;
        let record =
            if has_begun { read::record(&mut self.sql, execution)? } else { read::row_only(execution) };
        self.bytes += rows::size(&record);
        self.claimed.records.push(record);
        Ok(true)
    }
}
