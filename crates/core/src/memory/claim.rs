//! Claiming executions to run.

use std::sync::Arc;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::counters::Counters;
use crate::key::Key;
use crate::record::{Detail, Record};
use crate::store::{Claim, StoreError};
use crate::survey::is_same_version;
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
        let candidates: Vec<Key> = self
            .candidates(claim.from_quarantine, now)
            .into_iter()
            .filter(|key| self.can_run(*key, &claim.workflows, claim.app_version.as_deref()))
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
            self.alone.remove(&key);
            taken.extend(self.record(key, Detail::Full));
        }
        if let ([record], true) = (taken.as_slice(), claim.from_quarantine) {
            self.alone.insert(record.execution.key);
        }
        if !taken.is_empty() {
            counters.claimed();
            let lane = self.lane(claim.worker, claim.lane, claim.epoch)?;
            lane.last_number = claim.number;
            lane.last_outcomes = Vec::new();
        }
        Ok(taken)
    }

    /// What may be claimed, in the order in which it is.
    fn candidates(&self, from_quarantine: bool, now: Timestamp) -> Vec<Key> {
        if from_quarantine {
            let mut due: Vec<_> = self.quarantine.iter().filter(|(_, at)| **at <= now).collect();
            due.sort_by_key(|(key, at)| (**at, **key));
            return due.into_iter().map(|(key, _)| *key).collect();
        }
        let due = self.due.iter().take_while(|(due_at, _)| *due_at <= now).map(|(_, key)| *key);
        due.chain(self.ready.values().copied()).collect()
    }

    /// True if the execution's workflow is one of these, and code of this version may run it.
    pub(super) fn can_run(&self, key: Key, workflows: &[Arc<str>], app_version: Option<&str>) -> bool {
        self.executions.get(&key).is_some_and(|row| {
            workflows.contains(&row.workflow) && is_same_version(app_version, row.app_version.as_deref())
        })
    }
}

fn size(record: &Record) -> usize {
    let checkpoints: usize = record.checkpoints.iter().map(|checkpoint| checkpoint.outcome.len()).sum();
    record.execution.input.len() + checkpoints
}
