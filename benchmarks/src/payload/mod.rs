//! `bench payload`: what the size of a step's value costs, and what it costs to cut work into steps.
//!
//! A workflow of seven steps that return 1 byte to 1 MB, in three ways, and one whose single step returns the same bytes
//! at once, as DBOS has published it for Python. In every round each of them runs once, in changing order, and the
//! bare store and the device are measured in between: whatever else the machine does bears on all of them.
//!
//! The random data is made before the clock starts. An ordinary step returns before its value is durable, which the
//! next step then waits for: so the *durable* way, whose steps return when theirs is, tells what each size costs.

mod driver;
mod figures;

use anyhow::Result;
use tokio::time::Instant;

pub use self::driver::Sdk;
use self::driver::{Driver, Times};
use crate::flush::{Appended, Bare};
use crate::measure::{Samples, ms_since};
use crate::report::{Figure, Row};
use crate::target::Place;

/// Bytes that the seven steps return.
pub const SIZES: [usize; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
/// What was published for them, in milliseconds; the first one was the process's first call.
pub const PUBLISHED: [f64; 7] = [55.41, 21.63, 21.71, 21.81, 23.87, 35.45, 120.46];
/// What was published for the seven together.
pub const PUBLISHED_SEVEN: f64 = 300.35;
/// What was published for the single step.
pub const PUBLISHED_ONE: f64 = 157.82;

/// Bytes of the row of a bare commit that stands for a small step.
const SMALL: usize = 100;
/// Bytes of the large one: as many as the largest step returns.
const LARGE: usize = SIZES[6];
/// Bare commits of a small row in each round.
const COMMITS: usize = 20;
/// First calls that are looked at, each of a fresh engine on a fresh store.
const FIRST_CALLS: usize = 5;
/// Rounds that do not count.
const WARM_UP: usize = 3;

/// A way to carry out the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Seven steps as they are by default.
    Ordinary,
    /// Seven steps whose outcomes the code sees only when they are durable.
    Durable,
    /// Seven speculative steps.
    Speculative,
    /// One step that returns the bytes of all.
    Batched,
}

impl Arm {
    /// All of them.
    pub const ALL: [Arm; 4] = [Arm::Ordinary, Arm::Durable, Arm::Speculative, Arm::Batched];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Arm::Ordinary => "ordinary",
            Arm::Durable => "durable",
            Arm::Speculative => "speculative",
            Arm::Batched => "batched",
        }
    }
}

/// What an arm's runs took.
#[derive(Default)]
struct Measured {
    made: Samples,
    first_call: Samples,
    steps: [Samples; 7],
    total: Samples,
}

impl Measured {
    fn note(&mut self, times: &Times) {
        self.made.push(times.made);
        self.first_call.push(times.begin + times.steps[0]);
        for (samples, ms) in self.steps.iter_mut().zip(&times.steps) {
            samples.push(*ms);
        }
        self.total.push(times.total);
    }
}

/// All that was measured.
#[derive(Default)]
struct All {
    arms: [Measured; 4],
    /// Of fresh engines: from the call to the end of its first step, and that step.
    first_calls: Samples,
    first_steps: Samples,
    small_commits: Samples,
    large_commits: Samples,
    appends: Samples,
}

impl All {
    fn of(&self, arm: Arm) -> &Measured {
        &self.arms[arm as usize]
    }
}

/// How many rounds `runs` are, with those that do not count: what `progress` gets to.
pub fn rounds(runs: usize) -> u64 {
    (FIRST_CALLS + WARM_UP + runs) as u64
}

/// Runs the experiment: its rows, its figures, and what the process that ran it had to say to people.
pub async fn run(
    place: &Place,
    sdk: &Sdk,
    runs: usize,
    progress: &dyn Fn(u64),
) -> Result<(Vec<Row>, Vec<Figure>, String)> {
    let mut all = All::default();
    let mut said = String::new();
    for n in 0..FIRST_CALLS {
        let target = place.target().await?;
        let mut driver = Driver::open(sdk, &target).await?;
        let times = driver.run(Arm::Ordinary).await?;
        all.first_calls.push(times.begin + times.steps[0]);
        all.first_steps.push(times.steps[0]);
        said += &driver.close().await?;
        progress(n as u64 + 1);
    }
    let target = place.target().await?;
    let mut driver = Driver::open(sdk, &target).await?;
    let mut bare = Bare::open(&target, &place.durability).await?;
    let mut appended = Appended::open(&target)?;
    let (small, large) = (vec![7; SMALL], vec![7; LARGE]);
    for round in 0..WARM_UP + runs {
        let counts = round >= WARM_UP;
        if let Some(bare) = &mut bare {
            for n in 0..=COMMITS {
                let begun = Instant::now();
                bare.commit(if n == COMMITS { &large } else { &small }).await?;
                let samples = if n == COMMITS { &mut all.large_commits } else { &mut all.small_commits };
                if counts {
                    samples.push(ms_since(begun));
                }
            }
        }
        let begun = Instant::now();
        appended.append(&large)?;
        if counts {
            all.appends.push(ms_since(begun));
        }
        for n in 0..Arm::ALL.len() {
            let arm = Arm::ALL[(round + n) % Arm::ALL.len()];
            let times = driver.run(arm).await?;
            if counts {
                all.arms[arm as usize].note(&times);
            }
        }
        progress((FIRST_CALLS + round + 1) as u64);
    }
    said += &driver.close().await?;
    if let Some(bare) = bare {
        bare.close().await?;
    }
    Ok((rows(&all), figures::figures(&all), said))
}

fn rows(all: &All) -> Vec<Row> {
    let mut rows = Vec::new();
    let first = Row { size: Some(SIZES[0]), steps: Some(7), ..all.first_steps.row("first call") };
    rows.push(Row { published_ms: Some(PUBLISHED[0]), ..first });
    for arm in Arm::ALL {
        let measured = all.of(arm);
        if arm == Arm::Batched {
            let row = Row { steps: Some(1), ..measured.total.row(arm.as_str()) };
            rows.push(Row { published_ms: Some(PUBLISHED_ONE), ..row });
            continue;
        }
        for (n, samples) in measured.steps.iter().enumerate() {
            let row = Row { size: Some(SIZES[n]), steps: Some(7), ..samples.row(arm.as_str()) };
            rows.push(Row { published_ms: (n > 0).then(|| PUBLISHED[n]), ..row });
        }
        let row = Row { steps: Some(7), ..measured.total.row(arm.as_str()) };
        rows.push(Row { published_ms: Some(PUBLISHED_SEVEN), ..row });
    }
    let bare = [
        ("commit", SMALL, &all.small_commits),
        ("commit", LARGE, &all.large_commits),
        ("append", LARGE, &all.appends),
        ("random data", SIZES.iter().sum(), &all.of(Arm::Ordinary).made),
    ];
    let bare = bare.into_iter().map(|(mode, size, samples)| Row { size: Some(size), ..samples.row(mode) });
    rows.extend(bare.filter(|row| row.completed > 0));
    rows
}
