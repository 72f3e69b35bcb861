//! [`Strays`]: executions that this worker owns and nobody runs, after a claim whose answer was lost.

use std::collections::HashSet;

use crate::key::Key;
use crate::sync::Mutex;

/// Tells strays from executions that are merely between two states.
///
/// The store lists what is owned and not *held*, that is not running here. One such list alone proves
/// nothing, either way:
/// - a run may have begun after the list of what is held was made: a stray is what two lists in a row show;
/// - what the claim took may be held by the run before it, whose suspension is durable and which has not
///   heard of that yet: the search goes on until a list was made without any of these.
///
/// What a claim has taken and not yet brought would seem to be a stray for as long as that takes: no list is made
/// meanwhile.
#[derive(Default)]
pub(crate) struct Strays {
    is_sought: bool,
    /// Held by runs that were about to end when the claim's answer was lost.
    hidden: HashSet<Key>,
    /// What the last list showed.
    suspects: HashSet<Key>,
}

impl Strays {
    /// A claim may have taken something. `ending` is what was held just now by runs that are about to end.
    pub(crate) fn seek(&mut self, ending: impl IntoIterator<Item = Key>) {
        self.is_sought = true;
        self.hidden.extend(ending);
    }

    /// The same if claims have failed since it was asked last.
    pub(crate) fn heed(&mut self, lost_claims: &Mutex<Option<Vec<Key>>>) {
        if let Some(ending) = lost_claims.lock().take() {
            self.seek(ending);
        }
    }

    /// True while the store is to be asked.
    pub(crate) fn are_sought(&self) -> bool {
        self.is_sought
    }

    /// True if the store is to be asked at once, to confirm what it has shown.
    pub(crate) fn are_suspected(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Takes a list of the store: made without the executions in `held`, it showed `seen`. Returns those
    /// that are to be adopted.
    pub(crate) fn confirm(&mut self, held: &[Key], seen: impl IntoIterator<Item = Key>) -> HashSet<Key> {
        let held: HashSet<Key> = held.iter().copied().collect();
        self.hidden.retain(|key| held.contains(key));
        let seen: HashSet<Key> = seen.into_iter().collect();
        let (strays, suspects) = seen.into_iter().partition(|key| self.suspects.contains(key));
        self.suspects = suspects;
        self.is_sought = !(self.suspects.is_empty() && self.hidden.is_empty());
        strays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lists_make_a_stray() {
        let (a, b) = (Key::mint(0), Key::mint(0));
        let mut strays = Strays::default();
        assert!(!strays.are_sought());
        strays.seek([]);
        assert!(strays.confirm(&[], [a, b]).is_empty());
        assert!(strays.are_suspected());
        assert_eq!(strays.confirm(&[b], [a]), HashSet::from([a]));
        assert!(!strays.are_sought());
    }

    #[test]
    fn the_search_goes_on_while_something_may_be_hidden() {
        let (a, b) = (Key::mint(0), Key::mint(0));
        let mut strays = Strays::default();
        strays.seek([a]);
        assert!(strays.confirm(&[a, b], []).is_empty());
        assert!(strays.are_sought() && !strays.are_suspected());
        assert!(strays.confirm(&[b], [a]).is_empty());
        assert_eq!(strays.confirm(&[b], [a]), HashSet::from([a]));
        assert!(!strays.are_sought());
    }
}
