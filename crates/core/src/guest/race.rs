//! [`GuestRace`]: a race between branches of a guest that run in threads.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use super::GuestBranch;
use crate::runtime::run::Run;
use crate::runtime::run::quiescence::races::{Race, RacePlace};
use crate::workflow::branch::ActiveBranch;

impl GuestBranch {
    /// Begins a race between `count` branches, at least one. This branch waits for nothing but the returned future, and
    /// then for the ends of all branches of the race. See [`Context::race_all`](crate::Context::race_all).
    #[must_use]
    pub fn race(&mut self, count: u32) -> (GuestRace, Vec<GuestBranch>) {
        let path = self.cx.next_path();
        let run = &self.cx.run;
        let race = run.begin_race(path.clone(), count);
        let branches = (0..count).map(|number| {
            let place = RacePlace { race: race.clone(), number, outer: self.place().cloned() };
            let racing = Racing { place: Arc::new(place), contest: Some(run.clone()) };
            Self {
                racing: Some(Box::new(racing)),
                cx: self.cx.for_branch(&path, number),
                active: Some(ActiveBranch::counted(run)),
            }
        });
        let branches = branches.collect();
        (GuestRace { run: run.clone(), race }, branches)
    }

    /// Returns the place of this branch, or of the branch around it, in a race.
    pub(super) fn place(&self) -> Option<&Arc<RacePlace>> {
        self.racing.as_ref().map(|racing| &racing.place)
    }

    /// Returns the race of a branch inside this one, which cannot win.
    pub(super) fn inherited_race(&self) -> Option<Box<Racing>> {
        self.place().map(|place| Box::new(Racing { place: place.clone(), contest: None }))
    }
}

/// A future of the number of the branch that wins a race. The winner is the branch that ends first. All others then
/// have to unwind: [`RunControl::stop_reason`](super::RunControl::stop_reason) says so. If the future is dropped before
/// it has resolved, all branches have to.
pub struct GuestRace {
    run: Arc<Run>,
    race: Arc<Race>,
}

impl Future for GuestRace {
    type Output = u32;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<u32> {
        self.run.poll_race(&self.race, cx.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for GuestRace {
    fn drop(&mut self) {
        self.run.end_race(&self.race);
    }
}

/// The race in which a branch is. When a branch that may win is dropped, it has ended the race.
pub(super) struct Racing {
    place: Arc<RacePlace>,
    /// The run of a branch that may win; `None` in branches inside of such a branch.
    contest: Option<Arc<Run>>,
}

impl Drop for Racing {
    fn drop(&mut self) {
        if let Some(run) = &self.contest {
            run.note_race_end(&self.place.race, self.place.number);
        }
    }
}
