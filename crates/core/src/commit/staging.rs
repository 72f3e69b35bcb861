//! Staging: the Writes that wait for the next flush, folded as they arrive, and the Writes that are held.
//!
//! Staged Writes fill *segments*, each at most one flush long. No Write of a segment depends on another Write of the
//! segment, except by folding. A Transition folds into the Start or Transition of the same row while the last segment
//! contains that Write.
//!
//! A Write is *held* in four cases. Its segment already changes the same row, and the Write cannot fold. The outcome of
//! a guarded Start of its tree is unknown. A Write of its tree waits for a lock of another transaction. A Write of its
//! tree was rejected. While any Write of a tree is held, all later Writes of that tree queue behind it in order. Other
//! trees are not held.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::ThreadId;

use smallvec::smallvec;

use super::fate::Fate;
use super::lsn::Lsn;
use super::pending_wakes::PendingWakes;
use super::segment::{Entry, Meta, Room, Segment, changed_rows, holds_tree};
use super::watermark::Watermark;
use crate::key::Key;
use crate::queue::Placement;
use crate::store::{Outcome, Registration, State, Status, WorkerId, Write};

/// A Write to be staged on a lane.
pub(crate) struct Staged {
    /// The lane's generation under which the execution is owned. After the end of that generation, an owned Write is
    /// not staged, and a root's Start with the state `running` gets the state `queued`.
    pub(crate) generation: u32,
    /// Root of the execution tree, whose Writes stay in order.
    pub(crate) tree: Key,
    pub(crate) write: Write,
    /// Budget reserved for the Write, in bytes.
    pub(crate) reserved: u32,
    /// The tree's fate, which depends on its root's Start. `None` unless code of the tree runs before that Start is
    /// settled.
    pub(crate) fate: Option<Fate>,
}

/// Position of the last staged Write that changes an execution's row in `executions`: the segment's id, and the Write's
/// index in it. A Transition folds into that Write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoldTarget(Option<(u64, usize)>);

/// The executions that a rejected Write concerns.
#[derive(Default)]
pub(crate) struct RejectedExecutions {
    /// The execution that continues from its record, without the Writes that it has staged since.
    pub(crate) continued: Option<Key>,
    /// The executions that do not exist, because a rejected Start was to create them or their ancestor. Children whose
    /// Starts are held need not be listed.
    pub(crate) missing: Vec<Key>,
}

struct HeldTree {
    reason: HoldReason,
    queue: VecDeque<Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HoldReason {
    /// The outcome of this execution's Start is unknown.
    StartPending(Key),
    /// The flush already changes the same row.
    Collision,
    /// A Write of the tree waits for another transaction, in the slow lane.
    Blocked,
    /// The Write at this Lsn was rejected, and the engine has not staged its replacement yet.
    Rejected(Lsn),
}

pub(super) struct Staging {
    next_lsn: Lsn,
    next_segment: u64,
    segments: VecDeque<Segment>,
    held: HashMap<Key, HeldTree>,
    pending_wakes: PendingWakes,
    /// Fates of the trees whose roots' Starts have no known outcome.
    fates: HashMap<Key, Fate>,
    registration: Option<Registration>,
    /// The lane's generation. It changes only under the lane's lock, and is read without the lock.
    generation: Arc<AtomicU32>,
    is_closed: bool,
    /// Whether the committer waits to be woken.
    is_committer_idle: bool,
    /// Threads that are in a burst, and are about to stage more Writes.
    bursting_threads: Vec<ThreadId>,
    /// Whether the next flush takes the staged Writes although a burst has not ended.
    is_flush_due: bool,
    /// Budget of dropped Writes, in bytes, to be released.
    freed_bytes: usize,
    max_writes: usize,
    max_bytes: usize,
    pub(super) spare_room: Room,
}

/// The committer's next task.
pub(super) enum NextFlush {
    /// A segment to flush, its registration, and the lane's watermark after the segment is settled.
    Segment(Segment, Registration, Lsn),
    /// No Write can be flushed at the moment.
    NothingReady,
    /// The lane is closed and everything is flushed.
    Closed,
}

/// Lsns with their outcomes.
pub(super) type Outcomes = Vec<(Lsn, Outcome)>;

impl Staging {
    pub(super) fn new(max_writes: usize, max_bytes: usize) -> Self {
        Self {
            next_lsn: Lsn(1),
            next_segment: 0,
            segments: VecDeque::new(),
            held: HashMap::new(),
            pending_wakes: PendingWakes::default(),
            fates: HashMap::new(),
            registration: None,
            generation: Arc::default(),
            is_closed: false,
            is_committer_idle: false,
            bursting_threads: Vec::new(),
            is_flush_due: false,
            freed_bytes: 0,
            max_writes,
            max_bytes,
            spare_room: Room::default(),
        }
    }

    pub(super) fn bind(&mut self, registration: Registration) {
        self.registration = Some(registration);
    }

    pub(super) fn registration(&self) -> Option<Registration> {
        self.registration
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(SeqCst)
    }

    /// Returns the generation for readers that do not hold the lock.
    pub(super) fn shared_generation(&self) -> Arc<AtomicU32> {
        self.generation.clone()
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        let staged = self.segments.iter().map(|segment| segment.writes.len()).sum();
        (staged, self.held.values().map(|tree| tree.queue.len()).sum())
    }

    /// Whether the committer (the thread of the lane) sleeps and must be woken. Otherwise the committer finds
    /// new Writes without a wake.
    pub(super) fn is_committer_idle(&self) -> bool {
        self.is_committer_idle
    }

    /// Returns whether the committer is idle, and marks it as woken.
    pub(super) fn take_committer_idle(&mut self) -> bool {
        std::mem::take(&mut self.is_committer_idle)
    }

    /// Notes that this thread has staged a Write. Returns whether the caller must wake the committer.
    pub(super) fn note_staged(&mut self) -> bool {
        if !self.bursting_threads.is_empty() && self.bursting_threads.contains(&std::thread::current().id()) {
            return false;
        }
        self.is_flush_due = true;
        self.take_committer_idle()
    }

    /// Begins a burst of this thread. Returns false if the thread is already in one.
    pub(super) fn begin_burst(&mut self) -> bool {
        let thread = std::thread::current().id();
        let is_new = !self.bursting_threads.contains(&thread);
        if is_new {
            self.bursting_threads.push(thread);
        }
        is_new
    }

    /// Ends the burst of a thread: a flush of the staged Writes is due now, even if other threads are in bursts.
    /// Returns whether the caller must wake the committer.
    pub(super) fn end_burst(&mut self, thread: ThreadId) -> bool {
        self.bursting_threads.retain(|other| *other != thread);
        if self.segments.is_empty() {
            return false;
        }
        // even if other threads are in bursts by now: these Writes have waited long enough
        self.is_flush_due = true;
        self.take_committer_idle()
    }

    pub(super) fn stage(
        &mut self,
        staged: Staged,
        fold_target: &mut FoldTarget,
        watermark: &Watermark,
    ) -> Option<Lsn> {
        let Staged { generation, tree, mut write, reserved, fate } = staged;
        if self.is_closed || fate.as_ref().is_some_and(Fate::has_failed) {
            return None;
        }
        if generation != self.generation() {
            match &mut write {
                // the local run is over; the worker that claims the execution runs it
                Write::Start(start) if start.state.status() == Status::Running && start.parent.is_none() => {
                    start.state = State::Queued { pending_sleeps: Vec::new() };
                }
                Write::Start(start) if start.state.status() == Status::Running => return None,
                write if write.is_owned() => return None,
                _ => {}
            }
        }
        if let Some(lsn) = self.pending_wakes.find(&write) {
            // the flush of the pending Wake also releases the budget of this one
            self.freed_bytes += reserved as usize;
            return Some(lsn);
        }
        if let Some(fate) = fate
            && matches!(&write, Write::Start(start) if start.is_guarded && start.key == tree)
        {
            self.fates.insert(tree, fate);
        }
        let lsn = self.next_lsn;
        self.next_lsn.0 += 1;
        self.pending_wakes.add(&write, lsn);
        let may_fold = match self.held.get(&tree) {
            _ if self.held.is_empty() => true,
            None => true,
            // the end of an execution may fold into its guarded Start if the tree has staged no other Write in between
            Some(held) => matches!(held.reason, HoldReason::StartPending(_)) && held.queue.is_empty(),
        };
        let meta = Meta { tree, lsns: smallvec![lsn], reserved };
        let mut entry = Entry { write, meta };
        if may_fold && matches!(entry.write, Write::Transition(_)) {
            match self.fold(entry, *fold_target) {
                Ok(()) => return Some(lsn),
                Err(unfolded) => entry = unfolded,
            }
        }
        if !self.held.is_empty()
            && let Some(held) = self.held.get_mut(&tree)
        {
            watermark.hold(&entry.meta.lsns);
            held.queue.push_back(entry);
            *fold_target = FoldTarget::default();
            return Some(lsn);
        }
        *fold_target = self.push(entry);
        Some(lsn)
    }

    /// Folds a Transition into the Write of the same row in the last segment. Returns the entry if it cannot fold.
    #[allow(clippy::result_large_err)] // an entry that does not fold is returned
    fn fold(&mut self, entry: Entry, fold_target: FoldTarget) -> Result<(), Entry> {
        let (Write::Transition(change), Some(segment)) = (&entry.write, self.segments.back_mut()) else {
            return Err(entry);
        };
        let key = change.key;
        let index = match fold_target.0 {
            Some((id, index)) if id == segment.id => Some(index),
            _ if segment.released_rows.is_empty() => None,
            _ => segment.released_rows.get(&key).copied(),
        };
        let Some(index) =
            index.filter(|&i| segment.writes.get(i).is_some_and(|write| write.execution() == key))
        else {
            return Err(entry);
        };
        if matches!(&segment.writes[index], Write::Start(start) if start.is_guarded && start.parent.is_some())
        {
            // the child may exist already. Then this Transition comes from the run of the existing child, because the
            // run of this Start waits for the outcome of the Start
            return Err(entry);
        }
        let before = segment.writes[index].size();
        let Entry { write: Write::Transition(change), meta } = entry else { return Ok(()) };
        match &mut segment.writes[index] {
            Write::Start(start) => {
                start.has_begun = true;
                start.state = change.state;
            }
            Write::Transition(earlier) => earlier.state = change.state,
            _ => return Err(Entry { write: Write::Transition(change), meta }),
        }
        segment.bytes = segment.bytes + segment.writes[index].size() - before;
        segment.metas[index].lsns.extend(meta.lsns);
        segment.metas[index].reserved += meta.reserved;
        Ok(())
    }

    /// Appends a Write to the last segment, or to a new segment if the last one is full. Returns the position at which
    /// a later Transition may fold into the Write.
    fn push(&mut self, entry: Entry) -> FoldTarget {
        let Entry { write, meta } = entry;
        let size = write.size();
        let is_full = self.segments.back().is_none_or(|last| {
            last.writes.len() >= self.max_writes
                || (last.bytes + size > self.max_bytes && !last.writes.is_empty())
        });
        if is_full {
            // a Write released from a held tree has an older Lsn, which stays held; a new Write has the
            // newest Lsn
            let newest = Lsn(self.next_lsn.0 - 1);
            let first_lsn = if meta.lsns.first() == Some(&newest) { newest } else { self.next_lsn };
            let room = std::mem::take(&mut self.spare_room);
            self.segments.push_back(Segment::with_room(self.next_segment, first_lsn, room));
            self.next_segment += 1;
        }
        let Some(segment) = self.segments.back_mut() else { return FoldTarget::default() };
        let index = segment.writes.len();
        let mut fold_target = FoldTarget::default();
        match &write {
            Write::Start(start) => {
                fold_target = FoldTarget(Some((segment.id, index)));
                // the child may exist already, and its run may change the same row in this segment
                segment.unowned_changes += usize::from(start.is_guarded && start.parent.is_some());
                if holds_tree(&write) {
                    segment.holding_starts.push(index);
                    let held =
                        HeldTree { reason: HoldReason::StartPending(start.key), queue: VecDeque::new() };
                    self.held.insert(meta.tree, held);
                }
            }
            Write::Transition(_) => fold_target = FoldTarget(Some((segment.id, index))),
            Write::Wake(_)
            | Write::Request(_)
            | Write::ClearRequests(_)
            | Write::DeleteChunks(_)
            | Write::CloseBatch(_) => {
                segment.unowned_changes += 1;
            }
            Write::Send(message) => segment.unowned_changes += usize::from(message.id.is_some()),
            Write::Checkpoint(_)
            | Write::Attempt(_)
            | Write::Chunk(_)
            | Write::Pack(_)
            | Write::Append(_)
            | Write::Forward(_) => {}
        }
        segment.bytes += size;
        segment.writes.push(write);
        segment.metas.push(meta);
        fold_target
    }

    /// Takes the next segment to flush.
    pub(super) fn take_flush(&mut self, watermark: &Watermark) -> NextFlush {
        if !self.bursting_threads.is_empty() && !self.is_flush_due && !self.is_closed {
            // a burst has not ended: more Writes are about to follow
            self.is_committer_idle = true;
            return NextFlush::NothingReady;
        }
        self.is_flush_due = false;
        if let Some(registration) = self.registration {
            while let Some(mut segment) = self.segments.pop_front() {
                if segment.unowned_changes > 0 {
                    self.extract_collisions(&mut segment, watermark);
                }
                let new_watermark = match self.segments.front() {
                    Some(next) => Lsn(next.first_lsn.0 - 1),
                    None => Lsn(self.next_lsn.0 - 1),
                };
                if !segment.writes.is_empty() {
                    self.pending_wakes.remove_taken(&segment.writes);
                    return NextFlush::Segment(segment, registration, new_watermark);
                }
            }
        }
        if self.is_closed && self.segments.is_empty() && self.held.is_empty() {
            return NextFlush::Closed;
        }
        self.is_committer_idle = true;
        NextFlush::NothingReady
    }

    /// Holds each Write of `segment` whose row an earlier Write of `segment` changes. Also holds all later Writes of
    /// its tree.
    fn extract_collisions(&mut self, segment: &mut Segment, watermark: &Watermark) {
        let mut rows = HashSet::with_capacity(segment.writes.len());
        let mut extracted: HashMap<Key, VecDeque<Entry>> = HashMap::new();
        let old = std::mem::take(segment);
        *segment = Segment { id: old.id, first_lsn: old.first_lsn, ..Segment::default() };
        for (write, meta) in old.writes.into_iter().zip(old.metas) {
            let changed = changed_rows(&write);
            let collides = extracted.contains_key(&meta.tree) || changed.iter().any(|row| rows.contains(row));
            if collides {
                watermark.hold(&meta.lsns);
                extracted.entry(meta.tree).or_default().push_back(Entry { write, meta });
                continue;
            }
            rows.extend(changed);
            segment.bytes += write.size();
            if holds_tree(&write) {
                segment.holding_starts.push(segment.writes.len());
            }
            segment.writes.push(write);
            segment.metas.push(meta);
        }
        if extracted.is_empty() {
            return;
        }
        for later in &mut self.segments {
            later.extract_trees(&mut extracted, watermark);
        }
        for (tree, mut queue) in extracted {
            match self.held.get_mut(&tree) {
                // a guarded Start that was extracted is held because of the collision; a guarded Start that stays in
                // the flush holds the tree as before
                Some(held) => {
                    queue.extend(held.queue.drain(..));
                    held.queue = queue;
                    let start_stays = segment.holding_starts.iter().any(|&i| segment.metas[i].tree == tree);
                    if matches!(held.reason, HoldReason::StartPending(_)) && !start_stays {
                        held.reason = HoldReason::Collision;
                    }
                }
                None => {
                    self.held.insert(tree, HeldTree { reason: HoldReason::Collision, queue });
                }
            }
        }
    }

    /// Settles the guarded Starts of a flushed segment: they no longer hold their trees. Returns the Writes that were
    /// dropped because a Start failed.
    pub(super) fn settle(&mut self, segment: &Segment, outcomes: &[(usize, Outcome)]) -> Outcomes {
        let mut dropped = Outcomes::new();
        for &index in &segment.holding_starts {
            let (tree, key) = (segment.metas[index].tree, segment.writes[index].execution());
            if self.held.get(&tree).is_none_or(|held| held.reason != HoldReason::StartPending(key)) {
                continue;
            }
            match outcomes.binary_search_by_key(&index, |(i, _)| *i) {
                Ok(i) => self.fail_start(tree, key, &outcomes[i].1, &mut dropped),
                Err(_) => self.confirm_start(tree, key),
            }
            self.release_tree(tree);
        }
        dropped
    }

    /// Releases the trees that were held because the last flush changed the same row.
    pub(super) fn release_collisions(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let is_collision =
            |(tree, held): (&Key, &HeldTree)| (held.reason == HoldReason::Collision).then_some(*tree);
        let trees: Vec<Key> = self.held.iter().filter_map(is_collision).collect();
        for tree in trees {
            self.release_tree(tree);
        }
    }

    /// Confirms that the Start of `execution` was applied.
    fn confirm_start(&mut self, tree: Key, execution: Key) {
        if tree == execution && !self.fates.is_empty() {
            self.fates.remove(&tree);
        }
    }

    /// Handles a Start that was not applied: drops the Writes that depend on it, unless `outcome` shows that
    /// the execution exists.
    fn fail_start(&mut self, tree: Key, execution: Key, outcome: &Outcome, dropped: &mut Outcomes) {
        match outcome {
            // the execution exists: an earlier run of the same parent started it
            Outcome::Duplicate(existing) if existing.key == execution => {}
            // without the root's Start, all Writes of the tree are dropped
            _ if tree == execution => {
                if let Some(fate) = self.fates.remove(&tree) {
                    fate.fail();
                }
                let Some(held) = self.held.get_mut(&tree) else { return };
                for entry in held.queue.drain(..) {
                    self.pending_wakes.remove_dropped(&entry);
                    self.freed_bytes += entry.meta.reserved as usize;
                    dropped.extend(entry.meta.lsns.iter().map(|&lsn| (lsn, Outcome::Dropped)));
                }
            }
            _ => self.drop_executions(tree, &[execution], dropped),
        }
    }

    /// Takes the budget, in bytes, that dropped Writes have freed.
    pub(super) fn take_freed(&mut self) -> usize {
        std::mem::take(&mut self.freed_bytes)
    }

    /// Drops the held Writes that a worker owns and that concern `executions` in `tree`.
    fn drop_executions(&mut self, tree: Key, executions: &[Key], dropped: &mut Outcomes) {
        let Some(held) = self.held.get_mut(&tree) else { return };
        held.queue.retain(|entry| {
            let is_dropped = entry.write.is_owned() && executions.contains(&entry.write.execution());
            if is_dropped {
                self.freed_bytes += entry.meta.reserved as usize;
                dropped.extend(entry.meta.lsns.iter().map(|&lsn| (lsn, Outcome::Dropped)));
            }
            !is_dropped
        });
    }

    /// Releases the held Writes of `tree`, up to the next guarded Start. The Lsns of these Writes stay held until the
    /// Writes are flushed.
    fn release_tree(&mut self, tree: Key) {
        let Some(HeldTree { mut queue, .. }) = self.held.remove(&tree) else { return };
        while let Some(entry) = queue.pop_front() {
            let entry = match self.fold(entry, FoldTarget::default()) {
                Ok(()) => continue,
                Err(entry) => entry,
            };
            let key = entry.write.execution();
            if let FoldTarget(Some((_, index))) = self.push(entry)
                && let Some(segment) = self.segments.back_mut()
            {
                segment.released_rows.insert(key, index);
            }
            if let Some(held) = self.held.get_mut(&tree) {
                held.queue = queue;
                return;
            }
        }
    }

    /// Removes the first Write of `segment`, which was rejected, and holds the rest of its tree until the replacement
    /// is staged. An unowned Write gets no replacement: its tree continues without it. `segment` contains no other
    /// tree. Returns the rejected Write, and the Writes that were dropped with it.
    pub(super) fn reject(&mut self, segment: Segment, watermark: &Watermark) -> (Entry, Outcomes) {
        let mut entries = segment.into_entries();
        let mut dropped = Outcomes::new();
        let Some(rejected) = entries.pop_front() else {
            unreachable!("a rejected segment has a first Write")
        };
        let (tree, execution, lsn) = (rejected.meta.tree, rejected.write.execution(), rejected.meta.lsns[0]);
        self.hold_tree(tree, HoldReason::Rejected(lsn), entries, watermark);
        if !rejected.write.is_owned() {
            if matches!(rejected.write, Write::Start(_)) {
                self.fail_start(tree, execution, &Outcome::Dropped, &mut dropped);
            }
            self.release_tree(tree);
        }
        (rejected, dropped)
    }

    /// Removes the first Write of `segment` for the slow lane, and holds the rest of its tree. `segment` contains no
    /// other tree.
    pub(super) fn block(&mut self, segment: Segment, watermark: &Watermark) -> Entry {
        let mut entries = segment.into_entries();
        let Some(blocked) = entries.pop_front() else { unreachable!("a blocked segment has a first Write") };
        watermark.hold(&blocked.meta.lsns);
        self.hold_tree(blocked.meta.tree, HoldReason::Blocked, entries, watermark);
        blocked
    }

    fn hold_tree(&mut self, tree: Key, reason: HoldReason, entries: VecDeque<Entry>, watermark: &Watermark) {
        let mut extracted = HashMap::from([(tree, VecDeque::new())]);
        for entry in &entries {
            watermark.hold(&entry.meta.lsns);
            self.pending_wakes.add(&entry.write, entry.meta.lsns[0]);
        }
        for later in &mut self.segments {
            later.extract_trees(&mut extracted, watermark);
        }
        let mut queue = entries;
        queue.extend(extracted.remove(&tree).unwrap_or_default());
        if let Some(held) = self.held.remove(&tree) {
            queue.extend(held.queue);
        }
        self.held.insert(tree, HeldTree { reason, queue });
    }

    /// Releases the tree of `entry` when the slow lane knows the outcome. Returns the Writes that were dropped because
    /// a Start failed.
    pub(super) fn unblock(&mut self, entry: &Entry, outcome: &Outcome) -> Outcomes {
        let mut dropped = Outcomes::new();
        let tree = entry.meta.tree;
        if self.held.get(&tree).is_some_and(|held| held.reason == HoldReason::Blocked) {
            if matches!(entry.write, Write::Start(_)) {
                match outcome {
                    Outcome::Applied => self.confirm_start(tree, entry.write.execution()),
                    outcome => self.fail_start(tree, entry.write.execution(), outcome, &mut dropped),
                }
            }
            self.release_tree(tree);
        }
        dropped
    }

    pub(super) fn replace_rejected(
        &mut self,
        tree: Key,
        rejected: Lsn,
        executions: &RejectedExecutions,
        write: Option<Write>,
    ) -> (Option<Arc<Placement>>, Outcomes) {
        let mut dropped = Outcomes::new();
        let held = self.held.get(&tree).filter(|held| held.reason == HoldReason::Rejected(rejected));
        let Some(held) = held else { return (None, dropped) };
        let continued = executions.continued;
        let placement = held.queue.iter().rev().find_map(|entry| match &entry.write {
            Write::Transition(change) if Some(change.key) == continued => change.placement.clone(),
            _ => None,
        });
        let mut affected = executions.missing.clone();
        for entry in &held.queue {
            if let Write::Start(start) = &entry.write
                && start.parent.as_ref().is_some_and(|parent| affected.contains(&parent.key))
            {
                affected.push(start.key);
            }
        }
        affected.extend(continued);
        self.drop_executions(tree, &affected, &mut dropped);
        if let Some(write) = write {
            let lsn = self.next_lsn;
            self.next_lsn.0 += 1;
            self.push(Entry { write, meta: Meta { tree, lsns: smallvec![lsn], reserved: 0 } });
        }
        self.release_tree(tree);
        (placement, dropped)
    }

    /// Ends the generation of `worker`. The outcome of owned Writes is `Fenced`; unowned Writes are staged
    /// again and wait for [`bind`](Staging::bind). `rest` contains the segments that were taken and not
    /// committed. If a registration other than `worker`'s is already bound, only `rest` is affected.
    pub(super) fn fence(&mut self, worker: WorkerId, rest: Vec<Segment>, watermark: &Watermark) -> Outcomes {
        let mut outcomes = Outcomes::new();
        let mut unowned = Vec::new();
        let mut entries: Vec<Entry> = rest.into_iter().flat_map(Segment::into_entries).collect();
        if self.registration.is_some_and(|registration| registration.worker == worker) {
            self.generation.fetch_add(1, SeqCst);
            self.registration = None;
            // no run of this generation stages another Write
            self.fates.clear();
            self.pending_wakes.clear();
            entries.extend(self.segments.drain(..).flat_map(Segment::into_entries));
            entries.extend(self.held.drain().flat_map(|(_, held)| held.queue));
        }
        for entry in entries {
            if entry.write.is_owned() {
                self.freed_bytes += entry.meta.reserved as usize;
                outcomes.extend(entry.meta.lsns.iter().map(|&lsn| (lsn, Outcome::Fenced)));
            } else {
                unowned.push(entry);
            }
        }
        for entry in unowned {
            outcomes.extend(self.restage(entry, watermark));
        }
        outcomes
    }

    /// Stages an unowned Write again, because it was not committed under an earlier registration.
    pub(super) fn restage(&mut self, mut entry: Entry, watermark: &Watermark) -> Outcomes {
        let mut outcomes = Outcomes::new();
        if let Write::Start(start) = &mut entry.write {
            // the local run is over; the worker that claims the execution runs it from the beginning
            outcomes.extend(entry.meta.lsns.drain(1..).map(|lsn| (lsn, Outcome::Fenced)));
            if !matches!(start.state, State::Scheduled { .. })
                && start.key.batch().is_none_or(|_| start.is_bundle())
            {
                start.state = State::Queued { pending_sleeps: Vec::new() };
            }
        }
        watermark.hold(&entry.meta.lsns);
        self.pending_wakes.add(&entry.write, entry.meta.lsns[0]);
        let tree = entry.meta.tree;
        match self.held.get_mut(&tree) {
            // a Write returned by the slow lane precedes the Writes held behind it
            Some(held) if held.reason == HoldReason::Blocked => {
                held.queue.push_front(entry);
                self.release_tree(tree);
            }
            Some(held) => held.queue.push_back(entry),
            None => {
                self.push(entry);
            }
        }
        outcomes
    }

    /// Closes the lane and takes all its staged Writes, which are not flushed any more.
    pub(super) fn close_and_take_all(&mut self) -> Vec<Entry> {
        self.is_closed = true;
        let mut entries: Vec<Entry> = self.segments.drain(..).flat_map(Segment::into_entries).collect();
        entries.extend(self.held.drain().flat_map(|(_, held)| held.queue));
        entries
    }
}
