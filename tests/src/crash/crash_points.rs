//! The crash points in the source: a victim is armed to kill itself at each, and its successors go on.
//!
//! A point is `stepfast_core::crash_point!("name")`, which is nothing unless the feature `crash-points` is on.
//! The list here and the source must agree, and every point must be reached: see `tests/crash.rs`.

use crate::crash::harness::{ChildOptions, ChildExit, StoreKind, Rig, Tally};

/// When a point is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPhase {
    /// In any life.
    Working,
    /// When what another one has left behind is found.
    Recovering,
    /// When a victim leaves in good order with work under way.
    ShuttingDown,
}

use CrashPhase::{ShuttingDown, Recovering, Working};

/// Points of the engine, passed on every store.
pub const ENGINE_POINTS: &[(&str, CrashPhase)] = &[
    ("engine registered", Working),
    ("lane staged", Working),
    ("flush taken", Working),
    ("flush durable", Working),
    ("flush published", Working),
    ("body begins", Working),
    ("body over and not recorded", Working),
    ("attempt staged", Working),
    ("checkpoint staged", Working),
    ("chunk staged", Working),
    ("child start staged", Working),
    ("child started and not recorded", Working),
    ("child end heard", Working),
    ("child cancel staged", Working),
    ("suspension staged", Working),
    ("suspension durable", Working),
    ("end staged", Working),
    ("end durable", Working),
    ("request durable", Working),
    ("claimed", Working),
    ("adopted", Recovering),
    ("look recovered", Recovering),
    ("shutdown hands back", ShuttingDown),
    ("shutdown lanes ended", ShuttingDown),
];

/// Points of the store in SQLite.
pub const SQLITE_POINTS: &[(&str, CrashPhase)] = &[
    ("sqlite migrated", Working),
    ("sqlite presence locked", Working),
    ("sqlite registered", Working),
    ("sqlite before commit", Working),
    ("sqlite after commit", Working),
    ("sqlite flush not announced", Working),
    ("sqlite lost workers fenced", Recovering),
    ("sqlite requeued and nobody woken", Recovering),
    ("sqlite registration given up", ShuttingDown),
];

/// Points of the store in Postgres.
pub const POSTGRES_POINTS: &[(&str, CrashPhase)] = &[
    ("postgres migrated", Working),
    ("postgres registered", Working),
    ("postgres before flush", Working),
    ("postgres flush open", Working),
    ("postgres after flush", Working),
    ("postgres claim open", Working),
    ("postgres after claim", Working),
    ("postgres fence open", Recovering),
    ("postgres lost workers fenced", Recovering),
    ("postgres requeued", Recovering),
    ("postgres registration given up", ShuttingDown),
];

/// Tries before a point counts as one that is never reached: some take a coincidence.
const MAX_TRIES: usize = 6;

/// Kills a victim at the `n`-th passage of a point, lets another one finish, and asks everything.
pub fn crash_at_point(kind: StoreKind, point: (&str, CrashPhase), n: u32, seed: u64, progress: &dyn Fn()) -> Tally {
    let (name, when) = point;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut tally = Tally::default();
    for _ in 0..MAX_TRIES {
        let mut rig = Rig::new(kind, if when == ShuttingDown { 24 } else { 12 });
        let mut kills = 0;
        if when == Recovering {
            let number = rig.spawn(&ChildOptions::default());
            rig.listen(rng.u64(20..120));
            rig.kill(number);
            if rig.listen(u64::MAX).is_some_and(|(_, fate)| fate == ChildExit::Killed) {
                kills += 1;
                progress();
            }
        }
        let leave = (when == ShuttingDown).then_some(3);
        rig.spawn(&ChildOptions { crash_at: Some(format!("{name}:{n}")), shutdown_after: leave });
        let is_reached = rig.listen(u64::MAX).is_some_and(|(_, fate)| fate == ChildExit::Crashed);
        if is_reached {
            kills += 1;
            progress();
            rig.check(false);
        }
        let mut done = rig.finish(kills);
        for violation in &mut done.violations {
            *violation = format!("at {name:?}, passage {n}: {violation}");
        }
        tally.add(done);
        // not every point is passed more than once
        if is_reached || n > 1 || !tally.violations.is_empty() {
            return tally;
        }
    }
    tally.violations.push(format!("the crash point {name:?} is never reached"));
    tally
}
