//! The conformance suite: the behaviour that every store must have. One file per noun, one function per case.
//!
//! A store takes part through a [`StoreFixture`]. tests/conformance.rs runs every case on every store.

use futures_util::future::BoxFuture;

use crate::StoreFixture;
use crate::fixtures::case_list::{cases, nouns};

/// A function that runs one case on a fresh database. It panics if the store misbehaves.
pub type ConformanceCase = for<'a> fn(&'a dyn StoreFixture) -> BoxFuture<'a, ()>;
use ConformanceCase as Case;

mod attributes;
mod batch_ends;
mod batches;
mod bundle_claims;
mod bundles;
mod checkpoint;
mod chunk;
mod claim;
mod deadline;
mod debounce;
mod dedup;
mod depth;
mod events;
mod fairness;
mod fence;
mod flush;
mod graphs;
mod heartbeat;
mod hint;
mod list;
mod load;
mod messages;
mod pause;
mod quarantine;
mod queue;
mod race;
mod rate;
mod request;
mod resend;
mod self_claiming;
mod start;
mod streams;
mod takeover;
mod timeout;
mod transition;
mod version;
mod wake;
mod workers;

nouns![
    attributes,
    batch_ends,
    batches,
    bundle_claims,
    bundles,
    checkpoint,
    chunk,
    claim,
    deadline,
    debounce,
    dedup,
    depth,
    fence,
    flush,
    graphs,
    hint,
    list,
    load,
    messages,
    events,
    streams,
    heartbeat,
    transition,
    pause,
    quarantine,
    queue,
    race,
    rate,
    request,
    resend,
    start,
    workers,
    takeover,
    timeout,
    fairness,
    version,
    wake,
    self_claiming
];
