//! The conformance suite: what every store must do, one file per noun, one function per case.
//!
//! A store joins with a [`StoreFixture`]; tests/conformance.rs runs every case on every store.

use futures_util::future::BoxFuture;

use crate::StoreFixture;
use crate::cases::{cases, nouns};

/// Runs a case on a fresh database; panics if the store misbehaves.
pub type Run = for<'a> fn(&'a dyn StoreFixture) -> BoxFuture<'a, ()>;

mod attributes;
mod checkpoint;
mod chunk;
mod claim;
mod deadline;
mod debounce;
mod dedup;
mod depth;
mod fence;
mod flush;
mod hint;
mod list;
mod load;
mod look;
mod moves;
mod quarantine;
mod queue;
mod race;
mod rate;
mod request;
mod resend;
mod start;
mod survey;
mod takeover;
mod timeout;
mod turns;
mod version;
mod wake;
mod yielding;

nouns![
    attributes, checkpoint, chunk, claim, deadline, debounce, dedup, depth, fence, flush, hint, list, load,
    look, moves, quarantine, queue, race, rate, request, resend, start, survey, takeover, timeout, turns,
    version, wake, yielding
];
