//! Values too large for a row: stored aside in chunks, before the Write that refers to them.

use std::collections::VecDeque;

use crate::commit::{Fate, Lane, FoldTarget, Staged};
use crate::error::Error;
use crate::key::Key;
use crate::payload::{CHUNK_SIZE, ChunkRef, INLINE_LIMIT, Payload};
use crate::runtime::inner::Core;
use crate::runtime::run::Run;
use crate::store::{Chunk, Write};

/// Chunks of one value that may be on their way at once: together as large as a flush may be.
const IN_FLIGHT: usize = 4;

/// Where a value belongs, and who stages it.
pub(crate) struct Place<'l> {
    pub(crate) lane: &'l Lane,
    pub(crate) generation: u32,
    pub(crate) execution: Key,
    pub(crate) tree: Key,
    /// True for an input that a caller brings.
    pub(crate) is_free: bool,
    pub(crate) fate: Option<Fate>,
}

impl<'l> Place<'l> {
    /// The place of a value that `run` stages for `execution`: itself, or a child.
    pub(crate) fn of(run: &'l Run, execution: Key) -> Self {
        let (lane, fate) = (run.lane(), run.fate.clone());
        Self { lane, generation: run.generation, execution, tree: run.root, is_free: false, fate }
    }
}

/// The payload as a row can hold it, with room taken for it: itself if it is small, else its bytes are
/// staged as chunks and a reference is returned. What is staged next in the tree is durable no earlier.
pub(crate) async fn store(place: Place<'_>, payload: Payload) -> (Payload, u32) {
    let Place { lane, generation, execution, tree, is_free, fate } = place;
    if payload.len() <= INLINE_LIMIT {
        let room = lane.reserve(payload.len() + 256).await;
        return (payload, room);
    }
    let value = fastrand::u64(..);
    let bytes = payload.to_bytes();
    let mut in_flight = VecDeque::with_capacity(IN_FLIGHT);
    let mut count = 0;
    for start in (0..bytes.len()).step_by(CHUNK_SIZE) {
        if in_flight.len() == IN_FLIGHT
            && let Some(oldest) = in_flight.pop_front()
        {
            lane.wait_durable(oldest).await;
        }
        let piece = bytes.slice(start..(start + CHUNK_SIZE).min(bytes.len()));
        let room = lane.reserve(piece.len() + 128).await;
        let chunk = Chunk { execution, value, index: count, bytes: piece, is_unowned: is_free };
        let staged = Staged { generation, tree, write: Write::Chunk(chunk), reserved: room, fate: fate.clone() };
        in_flight.extend(lane.stage(staged, &mut FoldTarget::default()));
        count += 1;
        crate::crash_point!("chunk staged");
    }
    (Payload::from_chunk_ref(ChunkRef { value, len: bytes.len() as u64, count }), 0)
}

/// The value behind a payload: itself, or fetched from its chunks.
pub(crate) async fn fetch(core: &Core, execution: Key, payload: Payload) -> Result<Payload, Error> {
    match payload.chunk_ref() {
        None => Ok(payload),
        Some(chunks) => Ok(Payload::from_bytes(core.store.load_value(execution, chunks).await?)),
    }
}
