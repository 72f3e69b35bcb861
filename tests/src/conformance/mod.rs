//! The conformance suite: what every store must do, one file per noun, one function per case.
//!
//! A store joins with a [`StoreFixture`]; tests/conformance.rs runs every case on every store.

use futures_util::future::BoxFuture;

use crate::StoreFixture;

/// Runs a case on a fresh database; panics if the store misbehaves.
pub type Run = for<'a> fn(&'a dyn StoreFixture) -> BoxFuture<'a, ()>;

/// The cases of a file, by their functions' names. A function that is not listed is dead code, and warned of.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        pub(super) const CASES: &[(&str, super::Run)] =
            &[$((stringify!($case), |fixture| Box::pin($case(fixture)))),*];
    };
}
use cases;

macro_rules! nouns {
    ($($noun:ident),* $(,)?) => {
        $(mod $noun;)*

        /// All cases, as (noun, behaviour, what to run).
        pub fn all() -> Vec<(&'static str, &'static str, Run)> {
            let mut all: Vec<(&'static str, &'static str, Run)> = Vec::new();
            $(all.extend($noun::CASES.iter().map(|(name, run)| (stringify!($noun), *name, *run)));)*
            all
        }
    };
}

nouns![
    checkpoint, chunk, claim, fence, flush, hint, list, load, look, moves, race, request, resend, start,
    takeover, wake
];
