//! Values too large for a row, which are stored in chunks before the Write that refers to them.

use std::collections::VecDeque;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::commit::{Fate, FoldTarget, Lane, Lsn, Staged};
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
    /// The run that stores the value; `None` for a caller.
    pub(crate) run: Option<&'l Run>,
}

impl<'l> ChunkTarget<'l> {
    /// Returns the target of a value that `run` stages for `execution`: its own execution, or a child.
    pub(crate) fn for_run(run: &'l Run, execution: Key) -> Self {
        let (lane, fate) = (run.lane(), run.fate.clone());
        let (generation, tree, run) = (run.generation, run.root, Some(run));
        Self { lane, generation, execution, tree, is_unowned: false, fate, run }
    }

    /// Returns the run if the value is the input of a child that it starts.
    fn parent_run(&self) -> Option<&'l Run> {
        self.run.filter(|run| run.key != self.execution)
    }

    /// Returns the number of a new value. A replay stores the input of the same child again, whether or not an earlier
    /// run has stored some of its pieces. Equal inputs of a child have equal numbers, so no pieces are left behind.
    fn new_value(&self, bytes: &[u8]) -> u64 {
        match self.parent_run() {
            Some(_) => xxh3_64_with_seed(bytes, self.execution.stable_hash()),
            None => fastrand::u64(..),
        }
    }

    /// Whether a value that was not stored completely may be withdrawn.
    fn may_withdraw(&self) -> bool {
        self.parent_run().is_none_or(|run| {
            // The child of a replayed run may exist already, with this input. The code of a guest may end after its run
            // has left the execution, when another run may store the input.
            !(run.is_replayed || run.definition.is_guest() && run.is_closed())
        })
    }

    fn stage(&self, chunk: Chunk, reserved: u32) -> Option<Lsn> {
        let (generation, tree, fate) = (self.generation, self.tree, self.fate.clone());
        let staged = Staged { generation, tree, write: Write::Chunk(chunk), reserved, fate };
        self.lane.stage(staged, &mut FoldTarget::default())
    }
}

/// A guard of a value whose pieces are being stored. If the code stops waiting, the pieces are deleted.
struct StoringValue<'t, 'l> {
    target: &'t ChunkTarget<'l>,
    value: u64,
    is_complete: bool,
}

impl Drop for StoringValue<'_, '_> {
    fn drop(&mut self) {
        let ChunkTarget { execution, is_unowned, .. } = *self.target;
        if !self.is_complete && self.target.may_withdraw() {
            self.target.stage(Chunk { is_unowned, ..Chunk::withdrawal(execution, self.value) }, 0);
        }
    }
}

impl Run {
    /// Deletes the pieces of an outcome that no row will refer to.
    pub(crate) fn withdraw_value(&self, outcome: &Payload) {
        if let Some(chunks) = outcome.chunk_ref() {
            let target = ChunkTarget::for_run(self, self.key);
            target.stage(Chunk::withdrawal(self.key, chunks.value), 0);
        }
    }
}

/// Budget for a row without its payload, in bytes.
pub(crate) const ROW_BYTES: usize = 256;

/// Reserves budget for the Write of a row that contains `payload`, and `other_bytes` of other values. Waits while the
/// budget is used up. Returns the reserved bytes.
pub(crate) async fn reserve_row(lane: &Lane, payload: &Payload, other_bytes: usize) -> u32 {
    lane.reserve(payload.len() + other_bytes + ROW_BYTES).await
}

/// Returns the payload as a row contains it. A small payload is returned as it is. A large payload is staged as chunks,
/// and a reference to the chunks is returned. Writes that the tree stages later are durable no earlier than the chunks.
/// Also returns the budget reserved for the row, which contains `other_bytes` of other values.
pub(crate) async fn store(target: ChunkTarget<'_>, payload: Payload, other_bytes: usize) -> (Payload, u32) {
    let ChunkTarget { lane, execution, is_unowned, .. } = target;
    if payload.len() <= INLINE_LIMIT {
        let reserved = reserve_row(lane, &payload, other_bytes).await;
        return (payload, reserved);
    }
    let bytes = payload.to_bytes();
    let value = target.new_value(&bytes);
    let mut storing = StoringValue { target: &target, value, is_complete: false };
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
        in_flight.extend(target.stage(chunk, reserved));
        count += 1;
        crate::crash_point!("chunk staged");
    }
    let payload = Payload::from_chunk_ref(ChunkRef { value, len: bytes.len() as u64, count });
    let reserved = reserve_row(lane, &payload, other_bytes).await;
    storing.is_complete = true;
    (payload, reserved)
}

/// Returns the value behind a payload, fetching it if it is stored in chunks.
pub(crate) async fn fetch(engine: &EngineInner, execution: Key, payload: Payload) -> Result<Payload, Error> {
    match payload.chunk_ref() {
        None => Ok(payload),
        Some(chunks) => Ok(Payload::from_bytes(engine.store.load_value(execution, chunks).await?)),
    }
}
