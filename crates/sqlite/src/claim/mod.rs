//! Claims: takes executions to run, those whose timer is due and ready ones, queue by queue and key by key.

mod inbox;
mod quarantine;
mod queues;
mod ready;

use std::collections::VecDeque;

use rusqlite::OptionalExtension;
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{AssignmentId, Claim, ClaimReply, Route, Status, StoreError, WorkerId};

use crate::claim::inbox::drain_inbox;
use crate::conn::row_counts::StatementCounts;
use crate::conn::statements::{Sql, Statements};
use crate::database::{Database, check_fence};
use crate::error::DbResult;
use crate::file_share::FileShare;
use crate::read;
use crate::rows::assignments::insert_assignment;
use crate::rows::queues::Capability;
use crate::rows::{key_bytes, key_of, parse_execution, status_of};

/// The position before all timers of a route.
const FIRST_TIMER: (i64, Key) = (i64::MIN, Key::from_bytes([0; 16]));

/// Number of rows that the search for executions reads at a time.
const PAGE_ROWS: usize = 64;

impl Database {
    /// Claims executions in one transaction, on the calling thread.
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
                let due_routes = capability(claim).routes(&mut tx.sql, Sql::NextTimerRoute)?;
                let (default_routes, named_routes): (Vec<_>, Vec<_>) =
                    due_routes.into_iter().partition(|route| route.queue() == DEFAULT_QUEUE);
                tx.queue_due(&named_routes)?;
                let is_cut_short = tx.claim_due(&default_routes, claim.due_share())?;
                tx.claim_ready(&mut self.fair_share.lock())?;
                if is_cut_short {
                    tx.claim_due(&default_routes, claim.limit)?;
                }
            }
            let claimed: Vec<Key> = tx.reply.records.iter().map(|record| record.execution.key).collect();
            if !claimed.is_empty() {
                insert_assignment(&mut tx.sql, claim.worker.0, assignment_id(claim), &claimed)?;
            }
            Ok((tx.reply, tx.sql.counts))
        })?;
        counts.add_to(&self.counters);
        if !reply.records.is_empty() {
            let claimed = reply.records.iter().map(|record| record.execution.key);
            self.assignments.add(claim.worker, assignment_id(claim), claimed);
            self.counters.add_claim();
        }
        Ok(reply)
    }
}

fn assignment_id(claim: &Claim) -> AssignmentId {
    AssignmentId { lane: claim.lane, number: claim.number }
}

/// Returns what the claiming worker can run.
fn capability(claim: &Claim) -> Capability<'_> {
    Capability {
        workflows: &claim.workflows,
        app_version: claim.app_version.as_deref(),
        queues: claim.queues.as_deref(),
    }
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

impl ClaimTx<'_, '_> {
    fn is_full(&self) -> bool {
        self.reply.records.len() >= self.claim.limit || self.bytes > self.claim.max_bytes
    }

    /// Makes due executions of these routes of named queues ready, because the limits of their queue apply.
    fn queue_due(&mut self, routes: &[Route]) -> DbResult<()> {
        for route in routes {
            let mut page = self.read_due_page(route, FIRST_TIMER)?;
            while let Some(last) = page.back().map(|(due_at, id, _)| (*due_at, *id)) {
                for (_, id, status) in page {
                    if let Some(status) = status
                        && self.queue_due_execution(id, status)?
                    {
                        self.delete_timer(id)?;
                    }
                }
                page = self.read_due_page(route, last)?;
            }
        }
        Ok(())
    }

    /// Claims due executions of these routes, which have no queue, earliest first, until the claim has `limit` executions.
    /// Returns whether some may be left.
    fn claim_due(&mut self, routes: &[Route], limit: usize) -> DbResult<bool> {
        // a page per route, refilled when it is used up: no timers of other routes are read
        let mut pages = Vec::with_capacity(routes.len());
        for route in routes {
            pages.push((route, self.read_due_page(route, FIRST_TIMER)?));
        }
        while !self.is_full() {
            let first = pages.iter_mut().filter(|(_, page)| !page.is_empty()).min_by_key(|(_, page)| page[0]);
            let Some((route, page)) = first else { return Ok(false) };
            if self.reply.records.len() >= limit {
                return Ok(true);
            }
            let Some((due_at, id, status)) = page.pop_front() else { break };
            if page.is_empty() {
                *page = self.read_due_page(route, (due_at, id))?;
            }
            if let Some(status) = status
                && self.claim_execution(id, status, status == Status::Waiting)?
            {
                self.delete_timer(id)?;
            }
        }
        Ok(true)
    }

    fn delete_timer(&mut self, id: Key) -> DbResult<()> {
        self.sql.delete(Table::Timers, Sql::DeleteTimer, [key_bytes(&id)])?;
        self.sql.delete(Table::Waits, Sql::DeleteWaits, [key_bytes(&id)])?;
        Ok(())
    }

    /// Reads the next due timers of a route, after a position. A status is `None` if this version does not support it.
    fn read_due_page(
        &mut self,
        route: &Route,
        after: (i64, Key),
    ) -> DbResult<VecDeque<(i64, Key, Option<Status>)>> {
        let params = (route.as_str(), after.0, key_bytes(&after.1), self.now.as_micros(), PAGE_ROWS as i64);
        let mut rows = self.sql.get(Sql::DueTimers)?.query(params)?;
        let mut page = VecDeque::new();
        while let Some(row) = rows.next()? {
            page.push_back((row.get(0)?, key_of(row, 1)?, status_of(row, 2)?));
        }
        Ok(page)
    }

    /// Makes an execution ready, because its timer is due. Returns false if the execution no longer has this status.
    fn queue_due_execution(&mut self, id: Key, status: Status) -> DbResult<bool> {
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

    /// Claims an execution if it has this status and is not parked. Loads its record if it has begun.
    fn claim_execution(&mut self, id: Key, status: Status, has_begun: bool) -> DbResult<bool> {
        let statement = self.sql.get(Sql::Execution)?;
        let found = statement
            .query_row([key_bytes(&id)], |row| Ok(parse_execution(row, true)))
            .optional()?
            .transpose()?;
        let Some(mut execution) = found.filter(|found| found.status == status && !found.is_parked) else {
            return Ok(false);
        };
        read::fetch_payloads(&mut self.sql, &mut execution)?;
        self.sql.update(Table::Executions, Sql::Claim, (key_bytes(&id), self.claim.worker.0))?;
        if execution.run_timeout.is_some() && !id.is_bundle() {
            execution.begin(self.now);
            let params = (key_bytes(&id), execution.deadline_at.map(Timestamp::as_micros));
            self.sql.run(Sql::StartRunTimeout, params)?;
        }
        execution.status = Status::Running;
        execution.owner = Some(WorkerId(self.claim.worker.0));
        execution.wake_at = None;
        // a request may cancel an item of a bundle that has not begun
        let is_full = has_begun || id.is_bundle() && self.sql.exists(Sql::HasRequest, [key_bytes(&id)])?;
        let record = if is_full {
            self.sql.run(Sql::AssignRequests, (key_bytes(&id), self.claim.worker.0))?;
            read::load_record(&mut self.sql, execution, false)?
        } else {
            read::load_outcome(&mut self.sql, execution)?
        };
        self.bytes += record.claim_bytes();
        self.reply.records.push(record);
        Ok(true)
    }
}
