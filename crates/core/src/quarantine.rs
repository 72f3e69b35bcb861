//! [`Quarantine`]: how a worker tries executions that seem to kill whoever runs them.

use std::sync::Arc;

use crate::engine::Core;
use crate::key::Key;
use crate::record::QUARANTINE;
use crate::run::Run;

/// Most that are tried at a time.
const MOST: usize = 64;

/// What a worker tries of what is in quarantine: one, and when that has gone or got on, twice as many, and so on.
///
/// So the first one that it tries after it began is alone, and if the process dies then, the culprit is known;
/// but when one culprit has brought thousands of innocents into quarantine, half of those that are left are
/// tried between two of its strikes.
pub(crate) struct Quarantine {
    trying: Vec<Trial>,
    size: usize,
}

/// An execution that is tried, and how many deliveries it had before.
struct Trial {
    key: Key,
    deliveries: u32,
}

impl Quarantine {
    pub(crate) fn new() -> Self {
        Self { trying: Vec::new(), size: 1 }
    }

    /// How many may be tried now: none while one of those before is no further than it was.
    pub(crate) fn room(&mut self, core: &Core) -> usize {
        if !self.trying.is_empty() {
            self.trying.retain(|trial| {
                core.runs.get(trial.key).is_some_and(|run| run.deliveries() == trial.deliveries)
            });
            if !self.trying.is_empty() {
                return 0;
            }
            self.size = (self.size * 2).min(MOST);
        }
        self.size
    }

    /// These are tried from here on.
    pub(crate) fn try_out<'r>(&mut self, runs: impl IntoIterator<Item = &'r Arc<Run>>) {
        let trials = runs.into_iter().map(|run| Trial { key: run.key, deliveries: run.deliveries() });
        self.trying.extend(trials);
    }
}

/// True if an execution with so many strikes has been tried alone often enough.
pub(crate) fn is_hopeless(strikes: u32, max_recoveries: u32) -> bool {
    strikes.checked_sub(QUARANTINE).is_some_and(|times| times >= max_recoveries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recoveries_in_quarantine_count() {
        assert!(!is_hopeless(0, 10) && !is_hopeless(12, 10) && is_hopeless(13, 10));
        assert!(is_hopeless(3, 0), "not one try");
        assert!(!is_hopeless(0, 0) && !is_hopeless(2, 0));
    }
}
