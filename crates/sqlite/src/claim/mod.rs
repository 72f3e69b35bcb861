//! Claims: takes executions to run, first those whose timer is due, then ready ones, queue by queue and key by key.

mod inbox;
mod quarantine;
mod queues;
mod ready;

use rusqlite::OptionalExtension;
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Claim, ClaimReply, Record, Status, StoreError, WorkerId, is_same_version};

use crate::claim::inbox::drain_inbox;
use crate::conn::row_counts::StatementCounts;
use crate::conn::statements::{Sql, Statements};
use crate::database::{Database, check_fence};
use crate::error::DbResult;
use crate::file_share::FileShare;
use crate::rows::{key_bytes, key_of, optional_text, parse_execution, status_of, text};
use crate::{read, rows};

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

impl ClaimTx<'_, '_> {
    fn is_full(&self) -> bool {
        self.reply.records.len() >= self.claim.limit || self.bytes > self.claim.max_bytes
    }

    /// Claims executions whose timer is due, earliest first. An execution with a queue becomes ready instead, because
    /// the limits of its queue apply.
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

    /// Makes an execution ready, because its timer is due. Returns false if the execution no longer has this status.
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
            Record::without_details(execution)
        };
        self.bytes += rows::payload_bytes(&record);
        self.reply.records.push(record);
        Ok(true)
    }
}
