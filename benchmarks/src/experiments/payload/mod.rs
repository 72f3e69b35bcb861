//! `bench payload`: the cost of the size of a step's value, and the cost of splitting work into steps.
//!
//! The experiment runs a workflow of seven steps that return 1 byte to 1 MB, in three ways, and a workflow whose single step
//! returns the same bytes at once, as DBOS has published it for Python. In every round each of them runs once, in changing
//! order. The bare store and the device are measured in between, so that other load on the machine affects all of them.
//!
//! The random data is created before the clock starts. An ordinary step returns before its value is durable, and the next
//! step waits for that. So only the *durable* arm, whose steps return when their values are durable, shows the cost of each
//! size.

mod driver;
mod figures;

use anyhow::Result;
use tokio::time::Instant;

pub use self::driver::Sdk;
use self::driver::{Driver, Times};
use crate::experiments::flush::{AppendFile, BareStore};
use crate::measure::{Samples, ms_since};
use crate::report::{Figure, Row};
use crate::target::TargetLocation;

/// The sizes of the values that the seven steps return, in bytes.
pub const SIZES: [usize; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
/// The published times of the seven steps, in milliseconds. The first one was the first call of its process.
pub const PUBLISHED: [f64; 7] = [55.41, 21.63, 21.71, 21.81, 23.87, 35.45, 120.46];
/// The published time of the seven steps together, in milliseconds.
pub const PUBLISHED_SEVEN: f64 = 300.35;
/// The published time of the single step, in milliseconds.
pub const PUBLISHED_ONE: f64 = 157.82;

/// The size of the row of a bare commit that a small step is compared with.
const SMALL_ROW_BYTES: usize = 100;
/// The size of the row of a large bare commit: the largest value of a step.
const LARGE_ROW_BYTES: usize = SIZES[6];
/// The number of bare commits of a small row in each round.
const COMMITS_PER_ROUND: usize = 20;
/// The number of measured first calls, each on a new engine and a new store.
const FIRST_CALL_RUNS: usize = 5;
/// The number of warm-up rounds, which are not measured.
const WARM_UP_ROUNDS: usize = 3;

/// A way to execute the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Seven steps with default options.
    Ordinary,
    /// Seven steps whose outcomes reach the code only when they are durable.
    Durable,
    /// Seven speculative steps.
    Speculative,
    /// One step that returns all bytes at once.
    Batched,
}

impl Arm {
    /// All arms.
    pub const ALL: [Arm; 4] = [Arm::Ordinary, Arm::Durable, Arm::Speculative, Arm::Batched];

    /// The arm's name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Arm::Ordinary => "ordinary",
            Arm::Durable => "durable",
            Arm::Speculative => "speculative",
            Arm::Batched => "batched",
        }
    }
}

/// The times of an arm's runs.
#[derive(Default)]
struct ArmSamples {
    made: Samples,
    first_call: Samples,
    steps: [Samples; 7],
    total: Samples,
}

impl ArmSamples {
    fn record(&mut self, times: &Times) {
        self.made.push(times.made);
        self.first_call.push(times.begin + times.steps[0]);
        for (samples, ms) in self.steps.iter_mut().zip(&times.steps) {
            samples.push(*ms);
        }
        self.total.push(times.total);
    }
}

/// All measured times.
#[derive(Default)]
struct PayloadSamples {
    arms: [ArmSamples; 4],
    /// On new engines: the times from the call to the end of the first step.
    first_calls: Samples,
    /// On new engines: the times of the first step.
    first_steps: Samples,
    small_commits: Samples,
    large_commits: Samples,
    appends: Samples,
}

impl PayloadSamples {
    fn arm(&self, arm: Arm) -> &ArmSamples {
        &self.arms[arm as usize]
    }
}

/// Returns the number of rounds for `runs`, with those that are not measured: the final value of `progress`.
pub fn rounds(runs: usize) -> u64 {
    (FIRST_CALL_RUNS + WARM_UP_ROUNDS + runs) as u64
}

/// Runs the experiment. Returns its rows, its figures, and the messages of its process for the user.
pub async fn run(
    location: &TargetLocation,
    sdk: &Sdk,
    runs: usize,
    progress: &dyn Fn(u64),
) -> Result<(Vec<Row>, Vec<Figure>, String)> {
    let mut samples = PayloadSamples::default();
    let mut messages = String::new();
    for n in 0..FIRST_CALL_RUNS {
        let target = location.open_target().await?;
        let mut driver = Driver::open(sdk, &target).await?;
        let times = driver.run(Arm::Ordinary).await?;
        samples.first_calls.push(times.begin + times.steps[0]);
        samples.first_steps.push(times.steps[0]);
        messages += &driver.close().await?;
        progress(n as u64 + 1);
    }
    let target = location.open_target().await?;
    let mut driver = Driver::open(sdk, &target).await?;
    let mut bare = BareStore::open(&target, &location.durability).await?;
    let mut append_file = AppendFile::open(&target)?;
    let (small, large) = (vec![7; SMALL_ROW_BYTES], vec![7; LARGE_ROW_BYTES]);
    for round in 0..WARM_UP_ROUNDS + runs {
        let is_measured = round >= WARM_UP_ROUNDS;
        if let Some(bare) = &mut bare {
            for n in 0..=COMMITS_PER_ROUND {
                let begun = Instant::now();
                bare.commit(if n == COMMITS_PER_ROUND { &large } else { &small }).await?;
                let commits = if n == COMMITS_PER_ROUND {
                    &mut samples.large_commits
                } else {
                    &mut samples.small_commits
                };
                if is_measured {
                    commits.push(ms_since(begun));
                }
            }
        }
        let begun = Instant::now();
        append_file.append(&large)?;
        if is_measured {
            samples.appends.push(ms_since(begun));
        }
        for n in 0..Arm::ALL.len() {
            let arm = Arm::ALL[(round + n) % Arm::ALL.len()];
            let times = driver.run(arm).await?;
            if is_measured {
                samples.arms[arm as usize].record(&times);
            }
        }
        progress((FIRST_CALL_RUNS + round + 1) as u64);
    }
    messages += &driver.close().await?;
    if let Some(bare) = bare {
        bare.close().await?;
    }
    Ok((rows(&samples), figures::figures(&samples), messages))
}

fn rows(samples: &PayloadSamples) -> Vec<Row> {
    let mut rows = Vec::new();
    let first = Row { size: Some(SIZES[0]), steps: Some(7), ..samples.first_steps.row("first call") };
    rows.push(Row { published_ms: Some(PUBLISHED[0]), ..first });
    for arm in Arm::ALL {
        let measured = samples.arm(arm);
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
        ("commit", SMALL_ROW_BYTES, &samples.small_commits),
        ("commit", LARGE_ROW_BYTES, &samples.large_commits),
        ("append", LARGE_ROW_BYTES, &samples.appends),
        ("random data", SIZES.iter().sum(), &samples.arm(Arm::Ordinary).made),
    ];
    let bare = bare.into_iter().map(|(mode, size, samples)| Row { size: Some(size), ..samples.row(mode) });
    rows.extend(bare.filter(|row| row.completed > 0));
    rows
}
