//! Replay: for any order in which bodies complete, and any point of a crash, recorded outcomes are repeated exactly,
//! and the execution continues from there.

#![allow(clippy::print_stdout)] // seeds, shown when a test fails

use std::time::Duration;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};
use stepfast_tests::engine::run_within;
use stepfast_tests::model::random_graphs;
use stepfast_tests::model::random_programs::{self, Program, check};

const TEST_TIMEOUT: Duration = Duration::from_secs(240);
/// Number of crashes tried per interleaving; some interleavings are tried with a crash at every point.
const CRASHES_PER_INTERLEAVING: usize = 1;

fn block_on(timeout: Duration, run: impl Future<Output = ()> + Send + 'static) -> Result<(), String> {
    run_within(timeout, move |runtime| runtime.block_on(run))
}

/// Checks 200 interleavings of a program.
#[allow(clippy::print_stdout)] // shown if it fails
fn interleaved(program: Program) {
    let program = program.numbered();
    let first = fastrand::u64(..);
    let run = async move {
        for n in 0..200 {
            let seed = first.wrapping_add(n);
            println!("seed {seed}");
            check(&program, seed, if n < 4 { usize::MAX } else { CRASHES_PER_INTERLEAVING }).await;
        }
    };
    if let Err(error) = block_on(TEST_TIMEOUT, run) {
        panic!("{error} (seeds from {first})");
    }
}

fn step() -> Program {
    Program::Step(0)
}

fn two_steps() -> Program {
    Program::Seq(vec![step(), step()])
}

#[test]
fn join_replays_deterministically() {
    interleaved(Program::Seq(vec![step(), Program::Join(two_steps().into(), two_steps().into()), step()]));
}

#[test]
fn limited_map_replays_deterministically() {
    interleaved(Program::Map(3, vec![two_steps(), step(), Program::Fail(0), step(), two_steps(), step()]));
}

#[test]
fn race_replays_deterministically() {
    interleaved(Program::Seq(vec![Program::Race(two_steps().into(), two_steps().into()), step()]));
}

#[test]
fn race_of_step_sleep_and_child_replays_deterministically() {
    let racers = vec![step(), Program::Sleep(1), Program::Child(0)];
    interleaved(Program::Seq(vec![
        Program::RaceAll(racers.clone()),
        step(),
        Program::RaceAll(racers),
        step(),
    ]));
}

/// Calls that are abandoned together are dropped in an undefined order: a crash may happen between any two of them.
#[test]
fn race_with_several_losers_replays_deterministically() {
    let map = Program::Map(2, vec![step(), Program::Child(2)]);
    interleaved(Program::Race(Program::Child(0).into(), map.into()));
}

#[test]
fn timeout_replays_deterministically() {
    let timeout = Program::Timeout(1, two_steps().into());
    interleaved(Program::Seq(vec![timeout.clone(), step(), timeout, step()]));
}

#[test]
fn spawn_replays_deterministically() {
    interleaved(Program::Spawn(
        two_steps().into(),
        Program::Seq(vec![step(), Program::Sleep(1), step()]).into(),
    ));
}

#[test]
fn channel_worker_pool_replays_deterministically() {
    interleaved(Program::Pool(4, 20));
}

/// Checks random cases with a seed each. Cases that failed before are in the file `failed_before`, and run first.
fn check_random<C: std::fmt::Debug + Clone + Send + 'static, F: Future<Output = ()> + Send + 'static>(
    failed_before: &'static str,
    count: u32,
    cases: impl Strategy<Value = C>,
    check: impl Fn(C, u64) -> F,
) {
    let config = Config {
        cases: count,
        max_shrink_iters: 200,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(failed_before))),
        ..Config::default()
    };
    let cases = (cases, proptest::arbitrary::any::<u64>());
    let result = TestRunner::new(config).run(&cases, |(case, seed)| {
        println!("seed {seed}");
        block_on(Duration::from_secs(30), check(case, seed)).map_err(TestCaseError::fail)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn random_program_replays_deterministically() {
    let failed_before = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/programs.txt");
    check_random(failed_before, 48, random_programs::programs(), |program, seed| async move {
        check(&program, seed, 12).await;
    });
}

#[test]
fn random_graph_ends_as_its_plain_evaluation() {
    let failed_before = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/graphs.txt");
    check_random(failed_before, 96, random_graphs::graphs(), |graph, seed| async move {
        random_graphs::check(&graph, seed, 12).await;
    });
}
