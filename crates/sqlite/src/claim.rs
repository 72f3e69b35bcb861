//! Claiming: executions whose timer is due, then the oldest in `ready`.

use rusqlite::OptionalExtension;
use std::collections::VecDeque;
use stepfast_core::counters::Table;
use stepfast_core::key::Key;
use stepfast_core::record::{Record, Status};
use stepfast_core::store::{Claim, StoreError};
use stepfast_core::survey::is_same_version;
use stepfast_core::write::WorkerId;

use crate::error::Tried;
use crate::row::{execution, key, key_of, maybe_text, text};
use crate::statements::{Sql, Statements, Tally};
use crate::writer::{Inner, fence};
use crate::{read, row};

/// Rows fetched at a time while looking for candidates.
const PAGE: usize = 64;

impl Inner {
    /// Claims in one transaction, on the calling thread.
    pub(crate) fn claim(&self, claim: &Claim) -> Result<Vec<Record>, StoreError> {
        let (records, tally): (Vec<Record>, Tally) = self.write("claiming executions", |conn| {
            let mut sql = Statements::new(conn);
            fence(&mut sql, claim.worker.0, claim.lane, claim.epoch)?;
            let mut claiming = Claiming { sql, claim, records: Vec::new(), bytes: 0 };
            let now = self.now().as_micros();
            if claim.from_quarantine {
                claiming.quarantined(now)?;
            } else {
                claiming.due(now)?;
                claiming.ready()?;
            }
            Ok((claiming.records, claiming.sql.tally))
        })?;
        tally.add_to(&self.counters);
        if !records.is_empty() {
            self.counters.claimed();
        }
        Ok(records)
    }
}

/// True if who claims can run executions of this workflow that are pinned to this version.
fn can_run(claim: &Claim, workflow: &str, app_version: Option<&str>) -> bool {
    let has_workflow = claim.workflows.iter().any(|name| **name == *workflow);
    has_workflow && is_same_version(claim.app_version.as_deref(), app_version)
}

struct Claiming<'c, 'a> {
    sql: Statements<'c>,
    claim: &'a Claim,
    records: Vec<Record>,
    bytes: usize,
}

impl Claiming<'_, '_> {
    fn is_full(&self) -> bool {
        self.records.len() >= self.claim.limit || self.bytes > self.claim.max_bytes
    }

    /// Takes suspended executions whose time has come, earliest first.
    fn due(&mut self, now: i64) -> Tried<()> {
        let mut after = (i64::MIN, Key::default());
        while !self.is_full() {
            let mut page: Vec<(i64, Key, bool)> = Vec::with_capacity(PAGE);
            let mut rows = self.sql.get(Sql::Due)?.query((after.0, key(&after.1), now, PAGE as i64))?;
            while let Some(row) = rows.next()? {
                let is_ours = can_run(self.claim, &text(row, 2)?, maybe_text(row, 3)?.as_deref());
                page.push((row.get(0)?, key_of(row, 1)?, is_ours));
            }
            drop(rows);
            let Some((due_at, last, _)) = page.last() else { return Ok(()) };
            after = (*due_at, *last);
            for (_, id, is_ours) in page {
                if self.is_full() {
                    return Ok(());
                }
                if is_ours && self.take(id, Status::Waiting)? {
                    self.sql.delete(Table::Timers, Sql::Untimer, [key(&id)])?;
                    self.sql.delete(Table::Waits, Sql::Unwait, [key(&id)])?;
                }
            }
        }
        Ok(())
    }

    /// Takes what may be tried of the quarantine, the longest in it first.
    fn quarantined(&mut self, now: i64) -> Tried<()> {
        let version = self.claim.app_version.as_deref();
        let mut rows = self.sql.get(Sql::Quarantined)?.query((now, version))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()?
            && found.len() < self.claim.limit
        {
            if self.claim.workflows.contains(&text(row, 2)?) {
                found.push(key_of(row, 1)?);
            }
        }
        drop(rows);
        for id in found {
            self.take(id, Status::Queued)?;
            // also if there was nothing to take: the row is stale then
            self.sql.run(Sql::Unquarantine, [key(&id)])?;
        }
        if let [only] = self.records.as_slice() {
            self.sql.run(Sql::TakeAlone, [key(&only.execution.key)])?;
        }
        Ok(())
    }

    /// Takes ready executions, oldest first over all workflows.
    fn ready(&mut self) -> Tried<()> {
        let workflows = self.claim.workflows.clone();
        // a page of each workflow, refilled when used up: nothing is read of workflows that are not ours
        let mut pages: Vec<(&str, VecDeque<(i64, Key)>)> = Vec::with_capacity(workflows.len());
        for workflow in workflows.iter() {
            if self.is_full() {
                return Ok(());
            }
            pages.push((workflow, self.ready_of(workflow, (i64::MIN, Key::default()))?));
        }
        while !self.is_full() {
            let oldest =
                pages.iter_mut().filter(|(_, page)| !page.is_empty()).min_by_key(|(_, page)| page[0]);
            let Some((workflow, page)) = oldest else { return Ok(()) };
            let Some((seq, id)) = page.pop_front() else { return Ok(()) };
            if page.is_empty() {
                *page = self.ready_of(workflow, (seq, id))?;
            }
            self.take(id, Status::Queued)?;
            // also if there was nothing to take: the row is stale then
            self.sql.delete(Table::Ready, Sql::Unready, [key(&id)])?;
        }
        Ok(())
    }

    fn ready_of(&mut self, workflow: &str, after: (i64, Key)) -> Tried<VecDeque<(i64, Key)>> {
        let limit = PAGE.min(self.claim.limit - self.records.len() + 1);
        let params = (workflow, after.0, key(&after.1), limit as i64, self.claim.app_version.as_deref());
        let mut rows = self.sql.get(Sql::ReadyOf)?.query(params)?;
        let mut page = VecDeque::with_capacity(limit);
        while let Some(row) = rows.next()? {
            page.push_back((row.get(0)?, key_of(row, 1)?));
        }
        Ok(page)
    }

    /// Takes one execution if it is in this status and not parked.
    fn take(&mut self, id: Key, status: Status) -> Tried<bool> {
        let statement = self.sql.get(Sql::Execution)?;
        let found =
            statement.query_row([key(&id)], |row| Ok(execution(row, true))).optional()?.transpose()?;
        let Some(mut execution) = found.filter(|found| found.status == status && !found.is_paused) else {
            return Ok(false);
        };
        self.sql.update(Table::Executions, Sql::Take, (key(&id), self.claim.worker.0))?;
        execution.status = Status::Running;
        execution.owner = Some(WorkerId(self.claim.worker.0));
        execution.wake_at = None;
        let record = read::record(&mut self.sql, execution)?;
        self.bytes += row::size(&record);
        self.records.push(record);
        Ok(true)
    }
}
