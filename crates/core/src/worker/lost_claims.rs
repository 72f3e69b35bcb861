//! [`LostClaims`]: the search for executions that this worker owns and does not run, after a claim without a reply.

use std::collections::HashSet;

use crate::key::Key;
use crate::sync::Mutex;

/// A search for lost claims: executions that a claim has taken although the worker received no reply. The search
/// excludes executions that are merely between two states.
///
/// The store lists the executions that this worker owns and does not *hold*, that is, does not run. A single list
/// proves nothing, for two reasons:
/// - A run may have begun after the worker collected the keys that it holds. Only an execution in two lists in a row is
///   lost.
/// - The claimed execution may still be held by its former run, whose suspension is durable but not reported to the run
///   yet. The search continues until a list was made without any such execution.
///
/// An execution that a claim has taken and not launched yet would look like a lost claim. So no list is made during a
/// claim.
#[derive(Default)]
pub(crate) struct LostClaims {
    is_searching: bool,
    /// Executions held by runs that were about to end when the claim got no reply.
    held_by_ending_runs: HashSet<Key>,
    /// Executions in the last list.
    suspects: HashSet<Key>,
}

impl LostClaims {
    /// Begins a search, because a claim may have taken executions. `ending` are the executions held by runs that are
    /// about to end.
    pub(crate) fn begin_search(&mut self, ending: impl IntoIterator<Item = Key>) {
        self.is_searching = true;
        self.held_by_ending_runs.extend(ending);
    }

    /// Begins a search if claims have failed since the last call.
    pub(crate) fn search_if_reported(&mut self, lost_claims: &Mutex<Option<Vec<Key>>>) {
        if let Some(ending) = lost_claims.lock().take() {
            self.begin_search(ending);
        }
    }

    /// Whether the store is to list unheld executions.
    pub(crate) fn is_searching(&self) -> bool {
        self.is_searching
    }

    /// Whether the store has to list again at once: an execution counts as lost if two lists in a row contain it.
    pub(crate) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Applies a list of the store. `unheld` are the listed executions, and `held` are those that the worker held when
    /// it asked for the list. Returns the executions to launch.
    pub(crate) fn confirm(&mut self, held: &[Key], unheld: impl IntoIterator<Item = Key>) -> HashSet<Key> {
        let held: HashSet<Key> = held.iter().copied().collect();
        self.held_by_ending_runs.retain(|key| held.contains(key));
        let unheld: HashSet<Key> = unheld.into_iter().collect();
        let (lost_claims, suspects) = unheld.into_iter().partition(|key| self.suspects.contains(key));
        self.suspects = suspects;
        self.is_searching = !(self.suspects.is_empty() && self.held_by_ending_runs.is_empty());
        lost_claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_claim_is_confirmed_by_second_list() {
        let (a, b) = (Key::mint(0), Key::mint(0));
        let mut lost_claims = LostClaims::default();
        assert!(!lost_claims.is_searching());
        lost_claims.begin_search([]);
        assert!(lost_claims.confirm(&[], [a, b]).is_empty());
        assert!(lost_claims.has_suspects());
        assert_eq!(lost_claims.confirm(&[b], [a]), HashSet::from([a]));
        assert!(!lost_claims.is_searching());
    }

    #[test]
    fn search_continues_while_ending_runs_hold_executions() {
        let (a, b) = (Key::mint(0), Key::mint(0));
        let mut lost_claims = LostClaims::default();
        lost_claims.begin_search([a]);
        assert!(lost_claims.confirm(&[a, b], []).is_empty());
        assert!(lost_claims.is_searching() && !lost_claims.has_suspects());
        assert!(lost_claims.confirm(&[b], [a]).is_empty());
        assert_eq!(lost_claims.confirm(&[b], [a]), HashSet::from([a]));
        assert!(!lost_claims.is_searching());
    }
}
