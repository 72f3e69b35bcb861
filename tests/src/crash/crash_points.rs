//! The crash points in the source: a child process kills itself at each of them, and later children continue its work.
//!
//! A point is `stepfast_core::crash_point!("name")`, which expands to nothing unless the feature `crash-points` is
//! on. The lists here must agree with the source, and every point must be reached: see `tests/crash.rs`.

use crate::crash::harness::{ChildExit, ChildOptions, CrashHarness, StoreKind, Tally};

/// The phase in which a point is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPhase {
    /// While a process runs executions.
    Working,
    /// While a process recovers executions of a dead one.
    Recovering,
    /// While a process shuts down with executions still running.
    ShuttingDown,
}

use CrashPhase::{Recovering, ShuttingDown, Working};

/// The points of the engine, passed on every store.
pub const ENGINE_POINTS: &[(&str, CrashPhase)] = &[
    ("engine registered", Working),
    ("lane staged", Working),
    ("flush taken", Working),
    ("flush durable", Working),
    ("flush published", Working),
    ("body begins", Working),
    ("body ended and not recorded", Working),
    ("attempt staged", Working),
    ("checkpoint staged", Working),
    ("chunk staged", Working),
    ("child start staged", Working),
    ("child started and not recorded", Working),
    ("batch ended and parent not woken", Working),
    ("message durable", Working),
    ("message kept", Working),
    ("event durable", Working),
    ("stream value staged", Working),
    ("continuation staged", Working),
    ("message sent and not recorded", Working),
    ("child end received", Working),
    ("child cancel staged", Working),
    ("suspension staged", Working),
    ("bundle staged", Working),
    ("batch closed", Working),
    ("pack staged", Working),
    ("item promoted", Working),
    ("suspension durable", Working),
    ("end staged", Working),
    ("end durable", Working),
    ("request durable", Working),
    ("claimed", Working),
    ("claimed run launched", Recovering),
    ("takeover finished", Recovering),
    ("shutdown requeues", ShuttingDown),
    ("shutdown lanes ended", ShuttingDown),
];

/// The points of the SQLite store.
pub const SQLITE_POINTS: &[(&str, CrashPhase)] = &[
    ("sqlite migrated", Working),
    ("sqlite presence locked", Working),
    ("sqlite registered", Working),
    ("sqlite before commit", Working),
    ("sqlite after commit", Working),
    ("sqlite flush without hint", Working),
    ("sqlite dead workers fenced", Recovering),
    ("sqlite requeued without hint", Recovering),
    ("sqlite registration closed", ShuttingDown),
];

/// The points of the Postgres store.
pub const POSTGRES_POINTS: &[(&str, CrashPhase)] = &[
    ("postgres migrated", Working),
    ("postgres registered", Working),
    ("postgres before flush", Working),
    ("postgres flush open", Working),
    ("postgres after flush", Working),
    ("postgres claim open", Working),
    ("postgres after claim", Working),
    ("postgres fence open", Recovering),
    ("postgres dead workers fenced", Recovering),
    ("postgres requeued", Recovering),
    ("postgres registration closed", ShuttingDown),
];

/// Maximum number of tries before a point counts as unreachable: some points depend on a coincidence.
const MAX_TRIES: usize = 6;

/// Kills a child at the `n`-th passage of a point, lets another child finish, and checks all promises.
pub fn crash_at_point(
    kind: StoreKind,
    point: (&str, CrashPhase),
    n: u32,
    seed: u64,
    progress: &dyn Fn(),
) -> Tally {
    let (name, when) = point;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut tally = Tally::default();
    for _ in 0..MAX_TRIES {
        let mut harness = CrashHarness::new(kind, if when == ShuttingDown { 24 } else { 12 });
        let mut kills = 0;
        if when == Recovering {
            let number = harness.spawn(&ChildOptions::default());
            harness.read_lines(rng.u64(20..120));
            harness.kill(number);
            if harness.read_lines(u64::MAX).is_some_and(|(_, exit)| exit == ChildExit::Killed) {
                kills += 1;
                progress();
            }
        }
        let shutdown_after = (when == ShuttingDown).then_some(3);
        harness.spawn(&ChildOptions { crash_at: Some(format!("{name}:{n}")), shutdown_after });
        let is_reached = harness.read_lines(u64::MAX).is_some_and(|(_, exit)| exit == ChildExit::Crashed);
        if is_reached {
            kills += 1;
            progress();
            harness.check(false);
        }
        let mut done = harness.finish(kills);
        for violation in &mut done.violations {
            *violation = format!("at {name:?}, passage {n}: {violation}");
        }
        tally.add(done);
        // some points are passed only once
        if is_reached || n > 1 || !tally.violations.is_empty() {
            return tally;
        }
    }
    tally.violations.push(format!("the crash point {name:?} is never reached"));
    tally
}
