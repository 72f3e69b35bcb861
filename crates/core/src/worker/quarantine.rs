//! [`QuarantineTrials`]: how a worker tries executions that are suspected of killing their workers.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::Run;
use crate::store::QUARANTINE_STRIKES;

/// Maximum number of executions that are tried at a time.
const MAX_TRIALS: usize = 64;
/// The time after which a trial counts as passed, so that a long body does not keep other executions waiting.
const MAX_TRIAL_DURATION: Duration = Duration::from_secs(30);

/// The executions in quarantine that a worker tries, in groups. The first group is one execution, and each further
/// group is twice as large, up to `MAX_TRIALS`. A group begins when all executions of the previous one have ended, made
/// progress, or run for long enough.
///
/// The first execution that a worker tries is alone: if the process dies then, the cause is known. If one execution
/// that kills workers has brought thousands of others into quarantine, many of the others are tried between two of its
/// strikes.
pub(crate) struct QuarantineTrials {
    trials: Vec<Trial>,
    batch_size: usize,
}

/// An execution that is tried, with the time at which the trial began, and the number of deliveries at that time.
struct Trial {
    key: Key,
    deliveries: u32,
    since: Timestamp,
}

impl QuarantineTrials {
    pub(crate) fn new() -> Self {
        Self { trials: Vec::new(), batch_size: 1 }
    }

    /// Returns how many executions may be tried now. Returns 0 while an execution of the previous group still runs, and
    /// has neither made progress nor run for long enough.
    pub(crate) fn capacity(&mut self, engine: &EngineInner) -> usize {
        if !self.trials.is_empty() {
            let now = engine.now();
            self.trials.retain(|trial| {
                now.since(trial.since) < MAX_TRIAL_DURATION
                    && engine.runs.get(trial.key).is_some_and(|run| run.delivery_count() == trial.deliveries)
            });
            if !self.trials.is_empty() {
                return 0;
            }
            self.batch_size = (self.batch_size * 2).min(MAX_TRIALS);
        }
        self.batch_size
    }

    /// Begins the trial of these runs.
    pub(crate) fn begin<'r>(&mut self, runs: impl IntoIterator<Item = &'r Arc<Run>>, now: Timestamp) {
        let trials =
            runs.into_iter().map(|run| Trial { key: run.key, deliveries: run.delivery_count(), since: now });
        self.trials.extend(trials);
    }
}

/// Whether an execution with this many strikes was tried alone at least `max_recoveries` times, and must fail.
pub(crate) fn exceeds_max_recoveries(strikes: u32, max_recoveries: u32) -> bool {
    strikes.checked_sub(QUARANTINE_STRIKES).is_some_and(|times| times >= max_recoveries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strikes_count_only_recoveries_in_quarantine() {
        assert!(
            !exceeds_max_recoveries(0, 10)
                && !exceeds_max_recoveries(12, 10)
                && exceeds_max_recoveries(13, 10)
        );
        assert!(exceeds_max_recoveries(3, 0), "no trial allowed");
        assert!(!exceeds_max_recoveries(0, 0) && !exceeds_max_recoveries(2, 0));
    }
}
