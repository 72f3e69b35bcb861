//! [`Segment`]: staged Writes of at most one flush.

use std::collections::{HashMap, HashSet, VecDeque};

use smallvec::{SmallVec, smallvec};
use xxhash_rust::xxh3::xxh3_128;

use super::lsn::Lsn;
use super::watermark::Watermark;
use crate::key::Key;
use crate::store::{State, Transition, Write};

/// A staged Write's tree, position and reserved budget.
#[derive(Clone, Debug)]
pub(super) struct Meta {
    pub(super) tree: Key,
    /// The Write's own Lsn, then the Lsns of the Writes that folded into it.
    pub(super) lsns: SmallVec<[Lsn; 2]>,
    pub(super) reserved: u32,
}

pub(super) struct Entry {
    pub(super) write: Write,
    pub(super) meta: Meta,
}

impl Entry {
    /// Separates the Transitions that have folded into a Start. Returns them as one Transition; `None` for other Writes.
    fn unfold_start(&mut self) -> Option<Self> {
        let Write::Start(start) = &mut self.write else { return None };
        if start.self_claims {
            return None;
        }
        let state = std::mem::replace(&mut start.state, State::Running { pending_sleeps: Vec::new() });
        start.has_begun = false;
        let transition = Transition { key: start.key, placement: start.placement.clone(), state };
        let lsns = self.meta.lsns.drain(1..).collect();
        Some(Self {
            write: Write::Transition(transition),
            meta: Meta { tree: self.meta.tree, lsns, reserved: 0 },
        })
    }
}

/// Staged Writes of at most one flush. Each Write in `writes` has its [`Meta`] at the same index in `metas`.
#[derive(Default)]
pub(super) struct Segment {
    pub(super) id: u64,
    /// Lower bound of the segment's new Lsns: every Lsn at or above it is in this segment, in a later one, or
    /// held.
    pub(super) first_lsn: Lsn,
    pub(super) writes: Vec<Write>,
    pub(super) metas: Vec<Meta>,
    pub(super) bytes: usize,
    /// Number of Writes that may change the same row as another Write of the segment. If it is 0, no Writes
    /// collide.
    pub(super) unowned_changes: usize,
    /// Indexes of the Starts in `writes` that [hold their tree](holds_tree).
    pub(super) holding_starts: Vec<usize>,
    /// Indexes of Starts and Transitions in `writes`, by execution. Contains only those whose
    /// [`FoldTarget`](super::FoldTarget) is out of date: they were released from a held tree, or moved within
    /// the segment.
    pub(super) released_rows: HashMap<Key, usize>,
}

/// Maximum number of Writes for which a lane keeps memory between flushes, about 1 MB.
const MAX_SPARE_WRITES: usize = 4_096;

/// The memory of a settled segment, for the next one. A segment with memory of its own would copy its Writes each time that it
/// grows, and its pages would be new to the process.
#[derive(Default)]
pub(super) struct Room {
    writes: Vec<Write>,
    metas: Vec<Meta>,
}

impl Room {
    /// Returns the memory of a settled segment, whose Writes are dropped.
    pub(super) fn of_settled(segment: Segment) -> Self {
        let Segment { mut writes, mut metas, .. } = segment;
        writes.clear();
        metas.clear();
        Self { writes, metas }
    }

    /// Replaces this memory by `other` if that has room for more Writes, but not for too many.
    pub(super) fn keep_larger(&mut self, other: Self) {
        if (self.writes.capacity() + 1..=MAX_SPARE_WRITES).contains(&other.writes.capacity()) {
            *self = other;
        }
    }
}

/// Returns the rows that a Write changes and other Writes might change too, by table and execution.
pub(super) fn changed_rows(write: &Write) -> SmallVec<[(u8, Key); 2]> {
    const EXECUTIONS: u8 = 0;
    const REQUESTS: u8 = 1;
    const CHUNKS: u8 = 2;
    const MESSAGE_IDS: u8 = 3;
    let key = write.execution();
    match write {
        Write::Start(_) | Write::Transition(_) | Write::Wake(_) | Write::CloseBatch(_) => {
            smallvec![(EXECUTIONS, key)]
        }
        Write::Request(_) => smallvec![(EXECUTIONS, key), (REQUESTS, key)],
        Write::ClearRequests(_) => smallvec![(REQUESTS, key)],
        Write::DeleteChunks(_) => smallvec![(CHUNKS, key)],
        Write::Send(message) => {
            // a hash is enough: two messages whose hashes are equal by chance are flushed one after the other
            message.recorded_ids().map(|(key, id)| (MESSAGE_IDS, hash_of_message_id(key, id))).collect()
        }
        // these insert rows of their own
        Write::Chunk(_) | Write::Checkpoint(_) | Write::Attempt(_) | Write::Pack(_) | Write::Append(_) => {
            smallvec![]
        }
        // the same after another Forward
        Write::Forward(_) => smallvec![],
    }
}

fn hash_of_message_id(receiver: Key, id: &str) -> Key {
    Key::from_bytes(xxh3_128(&[receiver.as_bytes(), id.as_bytes()].concat()).to_be_bytes())
}

/// Whether later Writes of the tree wait for the outcome of `write`: a guarded Start of a root, or of a child with an id.
/// A child that only a replay may start again has a key of its own, and nothing is staged for it before the outcome.
pub(super) fn holds_tree(write: &Write) -> bool {
    let Write::Start(start) = write else { return false };
    start.is_guarded && (start.parent.is_none() || start.workflow_id.is_some() || start.dedup_id.is_some())
}

impl Segment {
    /// Creates a segment in the memory of an earlier one.
    pub(super) fn with_room(id: u64, first_lsn: Lsn, room: Room) -> Self {
        let Room { writes, metas } = room;
        Self { id, first_lsn, writes, metas, ..Self::default() }
    }

    pub(super) fn into_entries(self) -> VecDeque<Entry> {
        self.writes.into_iter().zip(self.metas).map(|(write, meta)| Entry { write, meta }).collect()
    }

    pub(super) fn from_entries(entries: Vec<Entry>) -> Self {
        let mut segment = Self::default();
        for Entry { write, meta } in entries {
            if holds_tree(&write) {
                segment.holding_starts.push(segment.writes.len());
            }
            segment.writes.push(write);
            segment.metas.push(meta);
        }
        segment
    }

    /// Moves the Writes of the trees in `extracted` from the segment to the queues of `extracted`, in order.
    pub(super) fn extract_trees(
        &mut self,
        extracted: &mut HashMap<Key, VecDeque<Entry>>,
        watermark: &Watermark,
    ) {
        if !self.metas.iter().any(|meta| extracted.contains_key(&meta.tree)) {
            return;
        }
        let (id, first_lsn) = (self.id, self.first_lsn);
        let mut kept = Vec::new();
        let mut unowned_changes = 0;
        for entry in std::mem::take(self).into_entries() {
            if let Some(queue) = extracted.get_mut(&entry.meta.tree) {
                watermark.hold(&entry.meta.lsns);
                queue.push_back(entry);
            } else {
                unowned_changes += usize::from(!changed_rows(&entry.write).is_empty());
                kept.push(entry);
            }
        }
        // the segment gets a new id because indexes have moved: no fold target may refer to them, and
        // `released_rows` replaces the fold targets
        *self = Self { id: u64::MAX - id, first_lsn, unowned_changes, ..Self::from_entries(kept) };
        self.bytes = self.writes.iter().map(Write::size).sum();
        for (index, write) in self.writes.iter().enumerate() {
            if matches!(write, Write::Start(_) | Write::Transition(_)) {
                self.released_rows.insert(write.execution(), index);
            }
        }
    }

    /// Splits the segment in two, without dividing a tree. Returns the segment as `Err` if it contains only
    /// one tree. Trees whose Writes might wait for another transaction are separated from the others first.
    #[allow(clippy::result_large_err)] // a segment that cannot be split is returned
    pub(super) fn split(self) -> Result<(Self, Self), Self> {
        let mut trees: Vec<(bool, Key)> = Vec::new();
        let mut seen: HashMap<Key, usize> = HashMap::new();
        for (write, meta) in self.writes.iter().zip(&self.metas) {
            let index = *seen.entry(meta.tree).or_insert_with(|| {
                trees.push((false, meta.tree));
                trees.len() - 1
            });
            trees[index].0 |= match write {
                Write::Start(start) => start.is_guarded || start.is_bundle(),
                Write::Wake(_)
                | Write::Request(_)
                | Write::CloseBatch(_)
                | Write::Send(_)
                | Write::Forward(_) => true,
                _ => false,
            };
        }
        if trees.len() < 2 {
            return Err(self);
        }
        trees.sort_by_key(|(may_block, _)| *may_block);
        let unblocked = trees.iter().take_while(|(may_block, _)| !may_block).count();
        let cut = if unblocked == 0 || unblocked == trees.len() { trees.len() / 2 } else { unblocked };
        let first: HashSet<Key> = trees[..cut].iter().map(|(_, tree)| *tree).collect();
        let (first, second): (Vec<Entry>, Vec<Entry>) =
            self.into_entries().into_iter().partition(|entry| first.contains(&entry.meta.tree));
        Ok((Self::from_entries(first), Self::from_entries(second)))
    }

    /// Returns this segment with `rest` appended.
    pub(super) fn join(self, rest: Option<Self>) -> Self {
        let mut entries: Vec<Entry> = self.into_entries().into();
        entries.extend(rest.into_iter().flat_map(Self::into_entries));
        Self::from_entries(entries)
    }

    /// Splits the first Write from the others. Returns the segment as `Err` if it contains only one Write.
    #[allow(clippy::result_large_err)] // a segment that cannot be split is returned
    pub(super) fn split_first(self) -> Result<(Self, Self), Self> {
        if self.writes.len() < 2 {
            return Err(self);
        }
        let mut entries: Vec<Entry> = self.into_entries().into();
        if entries[0].meta.lsns.len() > 1 {
            // Transitions have folded into the first Write, and they are later than the rest of the tree. A Start must
            // stay first, because the rest may depend on it
            match entries[0].unfold_start() {
                Some(transition) => entries.push(transition),
                None => entries.rotate_left(1),
            }
        }
        let rest = entries.split_off(1);
        Ok((Self::from_entries(entries), Self::from_entries(rest)))
    }
}
