//! Claiming executions to run.

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::counters::Counters;
use crate::key::Key;
use crate::record::{Detail, Record};
use crate::store::{Claim, StoreError};
use crate::write::State;

impl Tables {
    /// Takes due sleepers by due time, then ready ones by age.
    pub(super) fn claim(
        &mut self,
        claim: &Claim,
        now: Timestamp,
        counters: &Counters,
    ) -> Result<Vec<Record>, StoreError> {
        let lane = self.lane(claim.worker, claim.lane, claim.epoch)?;
        if claim.number <= lane.last_number {
            // Sent again: it has happened, and the next look shows what it took.
            return Ok(Vec::new());
        }
        let due = self.due.iter().take_while(|(due_at, _)| *due_at <= now).map(|(_, key)| *key);
        let candidates: Vec<Key> = due
            .chain(self.ready.values().copied())
            .filter(|key| self.can_run(*key, &claim.workflows))
            .take(claim.limit)
            .collect();
        let mut taken = Vec::new();
        let mut bytes = 0;
        for key in candidates {
            let Some(record) = self.record(key, Detail::Full) else { continue };
            bytes += size(&record);
            if bytes > claim.max_bytes && !taken.is_empty() {
                break;
            }
            let state = State::Running { armed: record.execution.armed };
            self.enter(key, &state, Some(claim.worker), counters);
            taken.extend(self.record(key, Detail::Full));
        }
        if !taken.is_empty() {
            counters.claimed();
            let lane = self.lane(claim.worker, claim.lane, claim.epoch)?;
            lane.last_number = claim.number;
            lane.last_outcomes = Vec::new();
        }
        Ok(taken)
    }

    /// True if the execution's workflow is one of these.
    pub(super) fn can_run(&self, key: Key, workflows: &[std::sync::Arc<str>]) -> bool {
        self.executions.get(&key).is_some_and(|row| workflows.contains(&row.workflow))
    }
}

fn size(record: &Record) -> usize {
    let checkpoints: usize = record.checkpoints.iter().map(|checkpoint| checkpoint.outcome.len()).sum();
    record.execution.input.len() + checkpoints
}
