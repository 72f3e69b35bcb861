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
            let place = RacePlace { race: race.clone(), number, outer: self.place.clone() };
            Self {
                _contender: Some(Contender { run: run.clone(), race: race.clone(), number }),
                cx: self.cx.for_branch(&path, number),
                active: Some(ActiveBranch::counted(run)),
                place: Some(Arc::new(place)),
            }
        });
        let branches = branches.collect();
        (GuestRace { run: run.clone(), race }, branches)
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

/// A guard: the participation of a branch in a race, which the end of the branch ends.
pub(super) struct Contender {
    run: Arc<Run>,
    race: Arc<Race>,
    number: u32,
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.run.note_race_end(&self.race, self.number);
    }
}
