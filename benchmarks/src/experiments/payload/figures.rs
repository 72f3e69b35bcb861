//! The figures of `bench payload`, and their targets.

use super::{Arm, PayloadSamples, SIZES};
use crate::measure::Samples;
use crate::report::Figure;

/// Returns the figures, from the medians of one session. A store in memory has no bare commit to compare with.
pub(super) fn figures(samples: &PayloadSamples) -> Vec<Figure> {
    let f = samples.small_commits.median();
    let large_commit = samples.large_commits.median();
    let has_bare = f > 0.0;
    let seven = samples.arm(Arm::Ordinary).total.median();
    let speculative = samples.arm(Arm::Speculative).total.median();
    let one = samples.arm(Arm::Batched).total.median();
    let durable = &samples.arm(Arm::Durable).steps;
    // sizes at which only the step itself has a cost; the first step is left out, as it waits for its workflow's start
    let mut small = Samples::default();
    for n in [1, 2] {
        small.push(durable[n].median());
    }
    let large = durable[SIZES.len() - 1].median();
    let penalty = samples.first_calls.median() - samples.arm(Arm::Ordinary).first_call.median();
    let bare = |limit: f64| has_bare.then_some(limit);
    let ratio = |a: f64, b: f64| a / b.max(1e-9);
    let mut figures = vec![
        Figure::new("seven steps: one batched step + 6 x (f + 0.25 ms)", seven, "ms")
            .at_most(bare(one + 6.0 * (f + 0.25))),
        Figure::new("seven steps, the aim: one batched step + 6 x 1.2 f", seven, "ms")
            .at_most(bare(one + 6.0 * 1.2 * f)),
        Figure::new("seven speculative steps: 1.15 x one batched step", speculative, "ms")
            .at_most(1.15 * one),
        Figure::new("seven steps, as a multiple of one batched step", ratio(seven, one), "x"),
        Figure::new(
            "seven speculative steps, as a multiple of one batched step",
            ratio(speculative, one),
            "x",
        ),
        Figure::new("a small step until it is durable: f + 0.15 ms", small.median(), "ms")
            .at_most(bare(f + 0.15)),
        Figure::new("a 1 MB step until it is durable: 1.5 x a bare commit of 1 MB", large, "ms")
            .at_most(bare(1.5 * large_commit)),
        Figure::new(
            "a 1 MB step, as a multiple of a raw append of 1 MB and fdatasync",
            ratio(large, samples.appends.median()),
            "x",
        ),
        Figure::new("the first call, above the same call later", penalty, "ms").at_most(2.0),
    ];
    if has_bare {
        figures.insert(0, Figure::new("f: a bare commit of one small row", f, "ms"));
    }
    figures
}
