//! Claims of executions in quarantine.

use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::store::Status;

use crate::claim::ClaimTx;
use crate::claim::queues::QueueState;
use crate::conn::statements::Sql;
use crate::error::DbResult;
use crate::rows::{key_bytes, key_of, optional_text, text};

impl ClaimTx<'_, '_> {
    /// Claims executions in quarantine whose trial is due, the earliest trial first.
    pub(super) fn claim_quarantined(&mut self) -> DbResult<()> {
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
            let state = QueueState::read(&mut self.sql, &queue, self.claim.worker.0, self.now)?;
            let Some(mut state) = state.filter(|_| self.claim.serves(&queue)) else { continue };
            // no quarantined execution counts as woken
            state.choose_scope(&mut self.sql, &[])?;
            if state.capacity == 0 || state.key_capacity(&mut self.sql, &queue_key)? == 0 {
                continue;
            }
            if self.claim_execution(id, Status::Queued, true)? {
                state.take_slot(&mut self.sql, &queue_key, id, self.claim.worker.0)?;
                state.record_starts(&mut self.sql, &queue_key, 1)?;
            }
            // deleted in both cases: if the execution was not claimed, its row is stale
            self.sql.run(Sql::DeleteQuarantine, [key_bytes(&id)])?;
        }
        if let [only] = self.reply.records.as_slice() {
            self.sql.run(Sql::MarkAlone, [key_bytes(&only.execution.key)])?;
        }
        Ok(())
    }
}
