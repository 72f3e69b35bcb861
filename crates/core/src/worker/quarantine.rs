//! [`Quarantine`]: how a worker tries executions that seem to kill whoever runs them.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::runtime::inner::Core;
use crate::runtime::run::Run;
use crate::store::QUARANTINE;

/// Most that are tried at a time.
const MOST: usize = 64;
/// An execution that has run for so long while it is tried has got on: a long body keeps no other waiting.
const LONG_ENOUGH: Duration = Duration::from_secs(30);

/// What a worker tries of what is in quarantine: one, and when that has gone, got on, or run for long enough, twice as
/// many, and so on.
///
/// So the first one that it tries after it began is alone, and if the process dies then, the culprit is known;
/// but when one culprit has brought thousands of innocents into quarantine, many of those that are left are
/// tried between two of its strikes.
pub(crate) struct Quarantine {
    trying: Vec<Trial>,
    size: usize,
}

/// An execution that is tried: how many deliveries it had before, and since when.
struct Trial {
    key: Key,
    deliveries: u32,
    since: Timestamp,
}

impl Quarantine {
    pub(crate) fn new() -> Self {
        Self { trying: Vec::new(), size: 1 }
    }

    /// How many may be tried now: none while one of those before is no further than it was, and has not run for long
    /// enough.
    pub(crate) fn room(&mut self, core: &Core) -> usize {
        if !self.trying.is_empty() {
            let now = core.now();
            self.trying.retain(|trial| {
                now.since(trial.since) < LONG_ENOUGH
                    && core.runs.get(trial.key).is_some_and(|run| run.deliveries() == trial.deliveries)
            });
            if !self.trying.is_empty() {
                return 0;
            }
            self.size = (self.size * 2).min(MOST);
        }
        self.size
    }

    /// These are tried from here on.
    pub(crate) fn try_out<'r>(&mut self, runs: impl IntoIterator<Item = &'r Arc<Run>>, now: Timestamp) {
        let trials =
            runs.into_iter().map(|run| Trial { key: run.key, deliveries: run.deliveries(), since: now });
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
