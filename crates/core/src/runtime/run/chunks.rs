//! Values too large for a row, which are stored in chunks before the Write that refers to them.

use std::collections::VecDeque;

use crate::commit::{Fate, FoldTarget, Lane, Staged};
use crate::error::Error;
use crate::key::Key;
use crate::payload::{CHUNK_SIZE, ChunkRef, INLINE_LIMIT, Payload};
use crate::runtime::inner::EngineInner;
use crate::runtime::run::Run;
use crate::store::{Chunk, Write};

/// Maximum number of chunks of one value that are staged and not durable. Together they are as large as a
/// flush may be.
const MAX_CHUNKS_IN_FLIGHT: usize = 4;

/// The execution to which a chunked value belongs, and the lane and generation under which it is staged.
pub(crate) struct ChunkTarget<'l> {
    pub(crate) lane: &'l Lane,
    pub(crate) generation: u32,
    pub(crate) execution: Key,
    pub(crate) tree: Key,
    /// Whether the chunks are unowned: the input of an execution that a caller starts.
    pub(crate) is_unowned: bool,
    pub(crate) fate: Option<Fate>,
}

impl<'l> ChunkTarget<'l> {
    /// Returns the target of a value that `run` stages for `execution`: its own execution, or a child.
    pub(crate) fn for_run(run: &'l Run, execution: Key) -> Self {
        let (lane, fate) = (run.lane(), run.fate.clone());
        Self { lane, generation: run.generation, execution, tree: run.root, is_unowned: false, fate }
    }
}

/// Returns the payload as a row contains it, with the budget reserved for it. A small payload is returned as
/// it is. A large payload is staged as chunks, and a reference to the chunks is returned. Writes that the
/// tree stages later are durable no earlier than the chunks.
pub(crate) async fn store(target: ChunkTarget<'_>, payload: Payload) -> (Payload, u32) {
    let ChunkTarget { lane, generation, execution, tree, is_unowned, fate } = target;
    if payload.len() <= INLINE_LIMIT {
        let reserved = lane.reserve(payload.len() + 256).await;
        return (payload, reserved);
    }
    let value = fastrand::u64(..);
    let bytes = payload.to_bytes();
    let mut in_flight = VecDeque::with_capacity(MAX_CHUNKS_IN_FLIGHT);
    let mut count = 0;
    for start in (0..bytes.len()).step_by(CHUNK_SIZE) {
        if in_flight.len() == MAX_CHUNKS_IN_FLIGHT
            && let Some(oldest) = in_flight.pop_front()
        {
            lane.wait_durable(oldest).await;
        }
        let chunk_bytes = bytes.slice(start..(start + CHUNK_SIZE).min(bytes.len()));
        let reserved = lane.reserve(chunk_bytes.len() + 128).await;
        let chunk = Chunk { execution, value, index: count, bytes: chunk_bytes, is_unowned };
        let staged = Staged { generation, tree, write: Write::Chunk(chunk), reserved, fate: fate.clone() };
        in_flight.extend(lane.stage(staged, &mut FoldTarget::default()));
        count += 1;
        crate::crash_point!("chunk staged");
    }
    (Payload::from_chunk_ref(ChunkRef { value, len: bytes.len() as u64, count }), 0)
}

/// Returns the value behind a payload, fetching it if it is stored in chunks.
pub(crate) async fn fetch(engine: &EngineInner, execution: Key, payload: Payload) -> Result<Payload, Error> {
    match payload.chunk_ref() {
        None => Ok(payload),
        Some(chunks) => Ok(Payload::from_bytes(engine.store.load_value(execution, chunks).await?)),
    }
}
