//! Claims: first executions whose timer is due, then ready executions, queue by queue and key by key.

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

use crate::claim::inbox::drain_inbox;
use crate::claim::queues::QueueCapacity;
use crate::conn::statements::{Sql, StatementCounts, Statements};
use crate::database::{Database, check_fence};
use crate::error::DbResult;
use crate::file_share::FileShare;
use crate::rows::queues::ready_queues;
use crate::rows::{execution, key_bytes, key_of, optional_text, status_of, text};
use crate::{read, rows};

/// Number of rows fetched at a time during the search for executions.
const PAGE_ROWS: usize = 64;

impl Database {
    /// Claims in one transaction, on the calling thread.
    pub(crate) fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let (reply, counts): (ClaimReply, StatementCounts) = self.write("claiming executions", |conn| {
            let mut sql = Statements::new(conn);
            check_fence(&mut sql, claim.worker.0, claim.lane, claim.epoch)?;
            let (share, now, reply) = (&self.share, self.now(), ClaimReply::default());
            let mut tx = ClaimTx { sql, share, claim, now, reply, bytes: 0 };
            if claim.from_quarantine {
                tx.claim_quarantined()?;
            } else {
                drain_inbox(&mut tx.sql, share, now)?;
                tx.claim_due()?;
                tx.claim_ready(&mut self.fair_share.lock())?;
            }
            Ok((tx.reply, tx.sql.counts))
        })?;
        counts.add_to(&self.counters);
        if !reply.records.is_empty() {
            self.counters.add_claim();
        }
        Ok(reply)
    }
}

/// Whether the claiming worker can run executions of this workflow that are pinned to this version.
fn can_run(claim: &Claim, workflow: &str, app_version: Option<&str>) -> bool {
    let has_workflow = claim.workflows.iter().any(|name| **name == *workflow);
    has_workflow && is_same_version(claim.app_version.as_deref(), app_version)
}

/// A claim inside its transaction.
struct ClaimTx<'c, 'a> {
    sql: Statements<'c>,
    share: &'a FileShare,
    claim: &'a Claim,
    now: Timestamp,
    reply: ClaimReply,
    /// Size of the claimed payloads, in bytes.
    bytes: usize,
}

/// The position of a `ready` row within its key: priority, seq, execution.
type ReadyPosition = (i64, i64, Key);

impl ClaimTx<'_, '_> {
    fn is_full(&self) -> bool {
        self.reply.records.len() >= self.claim.limit || self.bytes > self.claim.max_bytes
    }

    /// Claims executions whose timer is due, earliest first. An execution with a queue is queued again instead.
    fn claim_due(&mut self) -> DbResult<()> {
        let mut after = (i64::MIN, Key::default());
        while !self.is_full() {
            let mut page = Vec::with_capacity(PAGE_ROWS);
            let mut rows = self.sql.get(Sql::DueTimers)?.query((
                after.0,
                key_bytes(&after.1),
                self.now.as_micros(),
                PAGE_ROWS as i64,
            ))?;
            while let Some(row) = rows.next()? {
                let queue = optional_text(row, 4)?;
                let is_ours = can_run(self.claim, &text(row, 2)?, optional_text(row, 3)?.as_deref())
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
                if if has_queue {
                    self.queue_due(id, status)?
                } else {
                    self.claim_execution(id, status, has_begun)?
                } {
                    self.sql.delete(Table::Timers, Sql::DeleteTimer, [key_bytes(&id)])?;
                    self.sql.delete(Table::Waits, Sql::DeleteWaits, [key_bytes(&id)])?;
                }
            }
        }
        Ok(())
    }

    /// Makes an execution ready whose timer is due. Returns false if it has another status by now.
    fn queue_due(&mut self, id: Key, status: Status) -> DbResult<bool> {
        let statement = if status == Status::Scheduled { Sql::QueueDueScheduled } else { Sql::QueueDue };
        if self.sql.update(Table::Executions, statement, [key_bytes(&id)])? == 0 {
            return Ok(false);
        }
        if status == Status::Scheduled {
            self.sql.insert(Table::Ready, Sql::ReadyDue, (key_bytes(&id), self.share.next_seq(self.now)))?;
        } else {
            self.sql.insert(Table::Ready, Sql::ReadyResumed, (key_bytes(&id), true))?;
        }
        Ok(true)
    }

    /// Claims executions from the quarantine whose trial is due, the longest quarantined first.
    fn claim_quarantined(&mut self) -> DbResult<()> {
        let version = self.claim.app_version.as_deref();
        let mut rows = self.sql.get(Sql::QuarantineCandidates)?.query((self.now.as_micros(), version))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            if self.claim.workflows.contains(&text(row, 2)?) {
                found.push((
                    key_of(row, 1)?,
                    optional_text(row, 3)?,
                    optional_text(row, 4)?.unwrap_or_default(),
                ));
            }
        }
        drop(rows);
        for (id, queue, queue_key) in found {
            if self.reply.records.len() >= self.claim.limit {
                break;
            }
            let queue = queue.unwrap_or_else(|| DEFAULT_QUEUE.into());
            let capacity = QueueCapacity::read(&mut self.sql, &queue, self.claim.worker.0, self.now)?;
            let Some(mut capacity) = capacity.filter(|_| self.claim.serves(&queue)) else { continue };
            // no quarantined execution counts as woken
            capacity.choose_scope(&mut self.sql, &[])?;
            if capacity.remaining == 0 || capacity.key_capacity(&mut self.sql, &queue_key)? == 0 {
                continue;
            }
            if self.claim_execution(id, Status::Queued, true)? {
                capacity.take_slot(&mut self.sql, &queue_key, id, self.claim.worker.0)?;
                capacity.record_starts(&mut self.sql, &queue_key, 1)?;
            }
            // also if the execution was not claimed: the row is stale then
            self.sql.run(Sql::DeleteQuarantine, [key_bytes(&id)])?;
        }
        if let [only] = self.reply.records.as_slice() {
            self.sql.run(Sql::MarkAlone, [key_bytes(&only.execution.key)])?;
        }
        Ok(())
    }

    /// Claims from each queue and key what fairness and limits allow.
    fn claim_ready(&mut self, fair_share: &mut FairShare) -> DbResult<()> {
        if self.is_full() {
            return Ok(());
        }
        let workflows = self.claim.workflows.clone();
        let mut queues = BTreeSet::new();
        for workflow in workflows.iter() {
            queues.extend(ready_queues(&mut self.sql, workflow)?);
        }
        queues.retain(|queue| self.claim.serves(queue));
        let woken = self.claim_from_queues(fair_share, queues, false)?;
        if woken.is_empty() {
            return Ok(());
        }
        // woken executions go first; starts get the remaining capacity
        if self.is_full() {
            self.reply.has_more = true;
        } else {
            self.claim_from_queues(fair_share, woken, true)?;
        }
        Ok(())
    }

    /// Claims from these queues. From a queue with a rate, only woken executions are claimed, if it has any, unless
    /// `claims_starts`. Returns the queues from which only woken executions were claimed.
    fn claim_from_queues(
        &mut self,
        fair_share: &mut FairShare,
        queues: BTreeSet<Arc<str>>,
        claims_starts: bool,
    ) -> DbResult<BTreeSet<Arc<str>>> {
        let workflows = self.claim.workflows.clone();
        let mut capacities = Vec::with_capacity(queues.len());
        let mut ready_queues = Vec::with_capacity(queues.len());
        for queue in queues {
            let Some(mut capacity) =
                QueueCapacity::read(&mut self.sql, &queue, self.claim.worker.0, self.now)?
            else {
                continue;
            };
            capacity.choose_scope(&mut self.sql, if claims_starts { &[] } else { &workflows })?;
            ready_queues.push(capacity.ready_queue(
                &mut self.sql,
                &workflows,
                &fair_share.last_key(&queue),
            )?);
            self.reply.is_limited |= capacity.is_limited;
            self.reply.retry_at = self.reply.retry_at.into_iter().chain(capacity.retry_at).min();
            capacities.push(capacity);
        }
        let mut all = capacities.iter().zip(&ready_queues).peekable();
        for allocation in fair_share.allocate(&ready_queues, self.claim.limit - self.reply.records.len()) {
            while all.next_if(|(_, ready_queue)| ready_queue.queue != allocation.queue).is_some() {}
            let Some((capacity, _)) = all.peek() else { break };
            self.claim_allocation(&allocation, capacity)?;
        }
        let woken = capacities.iter().filter(|capacity| capacity.scope == ClaimScope::Woken);
        Ok(woken.map(|capacity| capacity.queue.clone()).collect())
    }

    /// Claims the first ready executions of a key, of all workflows.
    fn claim_allocation(&mut self, allocation: &Allocation, capacity: &QueueCapacity) -> DbResult<()> {
        let workflows = self.claim.workflows.clone();
        // a page per workflow, refilled when it is used up: no rows of other workflows are read
        let mut pages: Vec<(&str, VecDeque<ReadyPosition>)> = Vec::with_capacity(workflows.len());
        for workflow in workflows.iter() {
            pages.push((
                workflow,
                self.read_page(allocation, capacity, workflow, (i64::MIN, i64::MIN, Key::default()))?,
            ));
        }
        let mut claimed_count = 0;
        while !self.is_full() {
            let first = pages.iter_mut().filter(|(_, page)| !page.is_empty()).min_by_key(|(_, page)| page[0]);
            let Some((workflow, page)) = first else { break };
            if claimed_count == allocation.limit {
                // whether a rate allows for more is for the next claim to find out
                self.reply.has_more |= allocation.is_truncated || capacity.scope == ClaimScope::Starting;
                self.reply.is_limited |= !allocation.is_truncated;
                break;
            }
            let Some(position) = page.pop_front() else { break };
            if page.is_empty() {
                *page = self.read_page(allocation, capacity, workflow, position)?;
            }
            let (_, seq, id) = position;
            // an execution that has not begun has no record
            if self.claim_execution(id, Status::Queued, seq < 0)? {
                capacity.take_slot(&mut self.sql, &allocation.key, id, self.claim.worker.0)?;
                claimed_count += 1;
            }
            // also if the execution was not claimed: the row is stale then
            self.sql.delete(Table::Ready, Sql::DeleteReady, [key_bytes(&id)])?;
        }
        capacity.record_starts(&mut self.sql, &allocation.key, claimed_count)
    }

    /// Reads the next ready rows of a workflow, after a position.
    fn read_page(
        &mut self,
        allocation: &Allocation,
        capacity: &QueueCapacity,
        workflow: &str,
        after: ReadyPosition,
    ) -> DbResult<VecDeque<ReadyPosition>> {
        let limit = PAGE_ROWS.min(allocation.limit.saturating_add(1));
        // woken executions have an index of their own
        let sql = if capacity.scope == ClaimScope::Woken { Sql::WokenPage } else { Sql::ReadyPage };
        let params = params![
            workflow,
            &*allocation.queue,
            &*allocation.key,
            after.0,
            after.1,
            key_bytes(&after.2),
            limit as i64,
            self.claim.app_version.as_deref(),
            capacity.scope.is_woken(),
        ];
        let mut rows = self.sql.get(sql)?.query(params)?;
        let mut page = VecDeque::with_capacity(limit);
        while let Some(row) = rows.next()? {
            page.push_back((row.get(0)?, row.get(1)?, key_of(row, 2)?));
        }
        Ok(page)
    }

    /// Claims an execution if it has this status and is not parked. Loads its record if it has begun.
    fn claim_execution(&mut self, id: Key, status: Status, has_begun: bool) -> DbResult<bool> {
        let statement = self.sql.get(Sql::Execution)?;
        let found =
            statement.query_row([key_bytes(&id)], |row| Ok(execution(row, true))).optional()?.transpose()?;
        let Some(mut execution) = found.filter(|found| found.status == status && !found.is_parked) else {
            return Ok(false);
        };
        read::fetch_payloads(&mut self.sql, &mut execution)?;
        self.sql.update(Table::Executions, Sql::Claim, (key_bytes(&id), self.claim.worker.0))?;
        if execution.run_timeout.is_some() {
            execution.begin(self.now);
            let params = (key_bytes(&id), execution.deadline_at.map(Timestamp::as_micros));
            self.sql.run(Sql::StartRunTimeout, params)?;
        }
        execution.status = Status::Running;
        execution.owner = Some(WorkerId(self.claim.worker.0));
        execution.wake_at = None;
        let record = if has_begun {
            read::load_record(&mut self.sql, execution)?
        } else {
            read::record_of_row(execution)
        };
        self.bytes += rows::payload_bytes(&record);
        self.reply.records.push(record);
        Ok(true)
    }
}
