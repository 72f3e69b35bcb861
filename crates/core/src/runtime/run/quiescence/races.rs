//! Races between branches of a guest that run in threads.
//!
//! Threads run concurrently, so the order in which branches end between two deliveries is accidental. A race is
//! therefore decided in quiescence, before the next delivery: of the branches that have ended by then, the one with the
//! lowest number wins. A replay decides each race between the same deliveries, and so in the same way. If several races
//! can be decided, the order of their paths counts. A race is so decided before the races inside its branches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::Waker;

use crate::path::Path;
use crate::runtime::run::{Run, RunState};

/// The number in place of a winner while a race is open.
const UNDECIDED: u32 = u32::MAX;
/// The number in place of a winner after the race was given up: all its branches have lost.
const GIVEN_UP: u32 = u32::MAX - 1;

/// A race, and its winner once it is decided.
pub(crate) struct Race {
    path: Path,
    winner: AtomicU32,
}

impl Race {
    /// Returns the number of the branch that has won; `None` while the race is open.
    pub(crate) fn winner(&self) -> Option<u32> {
        Some(self.winner.load(SeqCst)).filter(|&winner| winner < GIVEN_UP)
    }
}

/// The place of a branch in a race.
pub(crate) struct RacePlace {
    pub(crate) race: Arc<Race>,
    pub(crate) number: u32,
    /// The place of the enclosing branch in an enclosing race.
    pub(crate) outer: Option<Arc<RacePlace>>,
}

impl RacePlace {
    /// Whether another branch has won this race, or an enclosing one.
    pub(crate) fn has_lost(&self) -> bool {
        let winner = self.race.winner.load(SeqCst);
        (winner != UNDECIDED && winner != self.number)
            || self.outer.as_ref().is_some_and(|outer| outer.has_lost())
    }
}

/// A race that is not decided yet.
pub(crate) struct OpenRace {
    race: Arc<Race>,
    /// The lowest number of the branches that have ended.
    first_ended: Option<u32>,
    /// The waker of the code that waits for the decision.
    waker: Option<Waker>,
}

/// The races of a run that are not decided yet. Few runs have any.
#[derive(Default)]
pub(crate) struct OpenRaces(Vec<OpenRace>);

impl OpenRaces {
    fn get_mut(&mut self, race: &Arc<Race>) -> Option<&mut OpenRace> {
        self.0.iter_mut().find(|open| Arc::ptr_eq(&open.race, race))
    }

    fn remove(&mut self, race: &Arc<Race>) -> Option<OpenRace> {
        let index = self.0.iter().position(|open| Arc::ptr_eq(&open.race, race))?;
        Some(self.0.swap_remove(index))
    }

    /// Returns the races of which a branch has ended.
    fn decidable(&self) -> impl Iterator<Item = &OpenRace> {
        self.0.iter().filter(|open| open.first_ended.is_some())
    }
}

impl Run {
    /// Begins a race between `count` branches, which count as active. The branch that begins the race counts as
    /// blocked until the decision.
    pub(crate) fn begin_race(&self, path: Path, count: u32) -> Arc<Race> {
        let race = Arc::new(Race { path, winner: AtomicU32::new(UNDECIDED) });
        let mut state = self.state();
        state.calls.open_races_mut().0.push(OpenRace { race: race.clone(), first_ended: None, waker: None });
        state.active_branches = state.active_branches + count - 1;
        state.mark_active();
        race
    }

    /// Notes that the branch with this number has ended. The branch still counts as active.
    pub(crate) fn note_race_end(&self, race: &Arc<Race>, number: u32) {
        let mut state = self.state();
        if let Some(open) = state.calls.open_races_mut().get_mut(race) {
            open.first_ended = Some(open.first_ended.map_or(number, |ended| ended.min(number)));
        }
    }

    /// Returns the winner; keeps `waker` while the race is open.
    pub(crate) fn poll_race(&self, race: &Arc<Race>, waker: &Waker) -> Option<u32> {
        let mut state = self.state();
        if let Some(open) = state.calls.open_races_mut().get_mut(race) {
            open.waker = Some(waker.clone());
        }
        race.winner()
    }

    /// Ends the wait for the decision. If the race is open, all its branches have lost, and the branch that has begun
    /// the race continues.
    pub(crate) fn end_race(&self, race: &Arc<Race>) {
        let mut state = self.state();
        if state.calls.open_races_mut().remove(race).is_some() {
            state.close_race(race, GIVEN_UP);
        }
    }
}

impl RunState {
    /// Whether a branch of an open race has ended.
    pub(crate) fn has_decidable_race(&self) -> bool {
        self.calls.open_races().is_some_and(|races| races.decidable().next().is_some())
    }

    /// Decides the next race, if there is one. Its losers have to unwind from now on. Must be called in quiescence.
    pub(super) fn decide_race(&mut self) -> bool {
        let Some(races) = self.calls.open_races() else { return false };
        let next = races.decidable().min_by(|a, b| a.race.path.cmp(&b.race.path));
        let Some(next) = next.map(|open| open.race.clone()) else { return false };
        let Some(OpenRace { race, first_ended, waker }) = self.calls.open_races_mut().remove(&next) else {
            return false;
        };
        self.close_race(&race, first_ended.unwrap_or(GIVEN_UP));
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Closes a race. The branch that has begun it is active from now on, so nothing is delivered until that branch
    /// waits again. The branch first waits for the losers, which therefore abandon their calls before the next
    /// delivery.
    fn close_race(&mut self, race: &Race, winner: u32) {
        race.winner.store(winner, SeqCst);
        self.active_branches += 1;
        self.mark_active();
        // the calls of other branches are woken too, and wait again
        for waker in &self.stop_wakers {
            waker.wake_by_ref();
        }
    }
}
