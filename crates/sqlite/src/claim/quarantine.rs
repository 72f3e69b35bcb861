//! Claims of executions in quarantine.

use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::store::Status;

use crate::claim::queues::QueueState;
use crate::claim::{ClaimTx, capability};
use crate::conn::statements::Sql;
use crate::error::DbResult;
use crate::rows::{key_bytes, key_of, optional_text};

impl ClaimTx<'_, '_> {
    /// Claims executions in quarantine whose trial is due, the earliest trial first.
    pub(super) fn claim_quarantined(&mut self) -> DbResult<()> {
        let mut found = Vec::new();
        for (workflow, version) in capability(self.claim).quarantine_versions(&mut self.sql)? {
            let params = (self.now.as_micros(), &*workflow, &*version);
            let mut rows = self.sql.get(Sql::QuarantineCandidates)?.query(params)?;
            while let Some(row) = rows.next()? {
                let due_at: i64 = row.get(0)?;
                let queue_key = optional_text(row, 3)?.unwrap_or_default();
                found.push((due_at, key_of(row, 1)?, optional_text(row, 2)?, queue_key));
            }
        }
        found.sort_unstable();
        for (_, id, queue, queue_key) in found {
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
                self.note_queue_limits(&state);
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
