//! Staging: what waits for the next flush, folded as it comes in, and what is held aside.
//!
//! Staged Writes fill *segments*, each at most one flush long. No Write of a segment depends on another of
//! it, except by folding: a Move folds into the Start or Move of the same row that has not left yet.
//!
//! A Write is *held* when it meets a row already in its segment and cannot fold, when a Start whose outcome
//! is unknown goes before it, or when it was blocked or refused. While any Write of a tree is held, all
//! later ones of that tree queue behind it in order; other trees pass.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::ThreadId;

use smallvec::smallvec;

use super::Lsn;
use super::fate::Fate;
use super::segment::{Entry, Meta, Segment, touched};
use super::watermark::Watermark;
use crate::key::Key;
use crate::queue::Placement;
use crate::store::{Outcome, Registration, State, Status, WorkerId, Write};

/// A Write on its way into a lane.
pub(crate) struct Staged {
    /// The lane's generation under which the execution is owned; of no meaning for free Writes.
    pub(crate) generation: u32,
    /// Root of the execution tree whose order it keeps.
    pub(crate) tree: Key,
    pub(crate) write: Write,
    /// Room taken for it.
    pub(crate) room: u32,
    /// What the tree shares with its root's Start, if its code runs before that is settled.
    pub(crate) fate: Option<Fate>,
}

/// Where an execution's last `executions` row change was staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot(Option<(u64, usize)>);

struct HeldTree {
    why: Why,
    queue: VecDeque<Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The outcome of the Start of this execution is not known yet.
    StartUnknown(Key),
    /// Its row was in the flush already.
    Collision,
    /// It waits for another transaction, in the slow lane.
    Blocked,
    /// The engine has yet to stage what takes its place.
    Refused(Lsn),
}

pub(super) struct Staging {
    next_lsn: Lsn,
    next_segment: u64,
    segments: VecDeque<Segment>,
    held: HashMap<Key, HeldTree>,
    /// Of the trees whose roots' Starts are unknown.
    fates: HashMap<Key, Fate>,
    registration: Option<Registration>,
    /// Changes under the lane's lock; read without it.
    generation: Arc<AtomicU32>,
    is_closed: bool,
    /// The committer waits to be woken.
    is_idle: bool,
    /// Threads that have more to stage at once.
    bursts: Vec<ThreadId>,
    /// Something was staged outside of a burst.
    is_urgent: bool,
    /// Room of Writes that were dropped, to be given back.
    freed: usize,
    max_writes: usize,
    max_bytes: usize,
}

/// What the committer finds.
pub(super) enum Taken {
    /// A flush's worth, the registration it goes out under, and the watermark once all of it is settled.
    Segment(Segment, Registration, Lsn),
    /// Nothing at the moment.
    Nothing,
    /// Nothing, and nothing will come.
    Closed,
}

/// Lsns with what became of them.
pub(super) type Outcomes = Vec<(Lsn, Outcome)>;

impl Staging {
    pub(super) fn new(max_writes: usize, max_bytes: usize) -> Self {
        Self {
            next_lsn: Lsn(1),
            next_segment: 0,
            segments: VecDeque::new(),
            held: HashMap::new(),
            fates: HashMap::new(),
            registration: None,
            generation: Arc::default(),
            is_closed: false,
            is_idle: false,
            bursts: Vec::new(),
            is_urgent: false,
            freed: 0,
            max_writes,
            max_bytes,
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

    /// Where others read the generation.
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

    /// True while the committer waits to be woken: before that it looks again by itself.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// True once after the committer has gone idle.
    pub(super) fn wants_waking(&mut self) -> bool {
        std::mem::take(&mut self.is_idle)
    }

    /// Something was staged by this thread; whether the committer has to be woken for it.
    pub(super) fn note_staged(&mut self) -> bool {
        if !self.bursts.is_empty() && self.bursts.contains(&std::thread::current().id()) {
            return false;
        }
        self.is_urgent = true;
        self.wants_waking()
    }

    /// This thread has more to stage at once; false if that was known.
    pub(super) fn begin_burst(&mut self) -> bool {
        let thread = std::thread::current().id();
        let is_new = !self.bursts.contains(&thread);
        if is_new {
            self.bursts.push(thread);
        }
        is_new
    }

    /// The thread has staged all; whether the committer has to be woken for that.
    pub(super) fn end_burst(&mut self, thread: ThreadId) -> bool {
        self.bursts.retain(|other| *other != thread);
        if self.segments.is_empty() {
            return false;
        }
        // also if other threads have begun meanwhile: what was staged has waited enough
        self.is_urgent = true;
        self.wants_waking()
    }

    pub(super) fn stage(&mut self, staged: Staged, slot: &mut Slot, watermark: &Watermark) -> Option<Lsn> {
        let Staged { generation, tree, mut write, room, fate } = staged;
        if self.is_closed || fate.as_ref().is_some_and(Fate::is_lost) {
            return None;
        }
        if generation != self.generation() {
            match &mut write {
                // its local run is over: whoever claims it runs it
                Write::Start(start) if start.state.status() == Status::Running && start.parent.is_none() => {
                    start.state = State::Queued { armed: Vec::new() };
                }
                Write::Start(start) if start.state.status() == Status::Running => return None,
                write if write.is_owned() => return None,
                _ => {}
            }
        }
        if let Some(fate) = fate
            && matches!(&write, Write::Start(start) if start.is_guarded && start.key == tree)
        {
            self.fates.insert(tree, fate);
        }
        let lsn = self.next_lsn;
        self.next_lsn.0 += 1;
        let may_fold = match self.held.get(&tree) {
            _ if self.held.is_empty() => true,
            None => true,
            // the guarded Start itself may still take up its own end, if nothing has come between
            Some(held) => matches!(held.why, Why::StartUnknown(_)) && held.queue.is_empty(),
        };
        let meta = Meta { tree, lsns: smallvec![lsn], room };
        let mut entry = Entry { write, meta };
        if may_fold && matches!(entry.write, Write::Transition(_)) {
            match self.fold(entry, *slot) {
                Ok(()) => return Some(lsn),
                Err(unfolded) => entry = unfolded,
            }
        }
        if !self.held.is_empty()
            && let Some(held) = self.held.get_mut(&tree)
        {
            watermark.hold(&entry.meta.lsns);
            held.queue.push_back(entry);
            *slot = Slot::default();
            return Some(lsn);
        }
        *slot = self.push(entry);
        Some(lsn)
    }

    /// Folds a Move into the Write of the same row in the last segment, if there is one.
    #[allow(clippy::result_large_err)] // what does not fold comes back
    fn fold(&mut self, entry: Entry, slot: Slot) -> Result<(), Entry> {
        let (Write::Transition(change), Some(segment)) = (&entry.write, self.segments.back_mut()) else {
            return Err(entry);
        };
        let key = change.key;
        let index = match slot.0 {
            Some((id, index)) if id == segment.id => Some(index),
            _ if segment.released.is_empty() => None,
            _ => segment.released.get(&key).copied(),
        };
        let Some(index) =
            index.filter(|&i| segment.writes.get(i).is_some_and(|write| write.execution() == key))
        else {
            return Err(entry);
        };
        if matches!(&segment.writes[index], Write::Start(start) if start.is_guarded && start.parent.is_some())
        {
            // it may be there already, and then this Move is its own: the Start's run waits for the outcome
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
        segment.metas[index].room += meta.room;
        Ok(())
    }

    /// Appends to the last segment, or to a new one when that is full.
    fn push(&mut self, entry: Entry) -> Slot {
        let Entry { write, meta } = entry;
        let size = write.size();
        let is_full = self.segments.back().is_none_or(|last| {
            last.writes.len() >= self.max_writes
                || (last.bytes + size > self.max_bytes && !last.writes.is_empty())
        });
        if is_full {
            // a Write out of a queue has an old Lsn, and is held; a fresh one has the newest
            let newest = Lsn(self.next_lsn.0 - 1);
            let first_lsn = if meta.lsns.first() == Some(&newest) { newest } else { self.next_lsn };
            self.segments.push_back(Segment { id: self.next_segment, first_lsn, ..Segment::default() });
            self.next_segment += 1;
        }
        let Some(segment) = self.segments.back_mut() else { return Slot::default() };
        let index = segment.writes.len();
        let mut slot = Slot::default();
        match &write {
            Write::Start(start) => {
                slot = Slot(Some((segment.id, index)));
                if start.is_guarded {
                    segment.guarded.push(index);
                    // a child that is there already may have changed its row in this very segment
                    segment.unowned += usize::from(start.parent.is_some());
                    let held = HeldTree { why: Why::StartUnknown(start.key), queue: VecDeque::new() };
                    self.held.insert(meta.tree, held);
                }
            }
            Write::Transition(_) => slot = Slot(Some((segment.id, index))),
            Write::Wake(_) | Write::Request(_) | Write::ClearRequests(_) | Write::DeleteChunks(_) => segment.unowned += 1,
            Write::Checkpoint(_) | Write::Attempt(_) | Write::Chunk(_) => {}
        }
        segment.bytes += size;
        segment.writes.push(write);
        segment.metas.push(meta);
        slot
    }

    /// The next flush's worth.
    pub(super) fn take(&mut self, watermark: &Watermark) -> Taken {
        if !self.bursts.is_empty() && !self.is_urgent && !self.is_closed {
            // more comes at once
            self.is_idle = true;
            return Taken::Nothing;
        }
        self.is_urgent = false;
        if let Some(registration) = self.registration {
            while let Some(mut segment) = self.segments.pop_front() {
                if segment.unowned > 0 {
                    self.part_collisions(&mut segment, watermark);
                }
                let passed = match self.segments.front() {
                    Some(next) => Lsn(next.first_lsn.0 - 1),
                    None => Lsn(self.next_lsn.0 - 1),
                };
                if !segment.writes.is_empty() {
                    return Taken::Segment(segment, registration, passed);
                }
            }
        }
        if self.is_closed && self.segments.is_empty() && self.held.is_empty() {
            return Taken::Closed;
        }
        self.is_idle = true;
        Taken::Nothing
    }

    /// Moves out of `segment` whatever meets a row that an earlier Write of it changes, with all that
    /// comes behind it in its tree.
    fn part_collisions(&mut self, segment: &mut Segment, watermark: &Watermark) {
        let mut rows = HashSet::with_capacity(segment.writes.len());
        let mut parted: HashMap<Key, VecDeque<Entry>> = HashMap::new();
        let old = std::mem::take(segment);
        *segment = Segment { id: old.id, first_lsn: old.first_lsn, ..Segment::default() };
        for (write, meta) in old.writes.into_iter().zip(old.metas) {
            let touched = touched(&write);
            let collides = parted.contains_key(&meta.tree) || touched.iter().any(|row| rows.contains(row));
            if collides {
                watermark.hold(&meta.lsns);
                parted.entry(meta.tree).or_default().push_back(Entry { write, meta });
                continue;
            }
            rows.extend(touched);
            segment.bytes += write.size();
            if matches!(&write, Write::Start(start) if start.is_guarded) {
                segment.guarded.push(segment.writes.len());
            }
            segment.writes.push(write);
            segment.metas.push(meta);
        }
        if parted.is_empty() {
            return;
        }
        for later in &mut self.segments {
            later.part(&mut parted, watermark);
        }
        for (tree, mut queue) in parted {
            match self.held.get_mut(&tree) {
                // a guarded Start that was parted takes its hold with it; one that goes keeps it
                Some(held) => {
                    queue.extend(held.queue.drain(..));
                    held.queue = queue;
                    let start_goes = segment.guarded.iter().any(|&i| segment.metas[i].tree == tree);
                    if matches!(held.why, Why::StartUnknown(_)) && !start_goes {
                        held.why = Why::Collision;
                    }
                }
                None => {
                    self.held.insert(tree, HeldTree { why: Why::Collision, queue });
                }
            }
        }
    }

    /// Settles a segment that was flushed: guarded Starts let go of their trees, and collisions may try
    /// again. Returns what was dropped because a Start lost.
    pub(super) fn settle(&mut self, segment: &Segment, outcomes: &[(usize, Outcome)]) -> Outcomes {
        let mut dropped = Outcomes::new();
        for &index in &segment.guarded {
            let (tree, key) = (segment.metas[index].tree, segment.writes[index].execution());
            if self.held.get(&tree).is_none_or(|held| held.why != Why::StartUnknown(key)) {
                continue;
            }
            match outcomes.binary_search_by_key(&index, |(i, _)| *i) {
                Ok(i) => self.lose(tree, key, &outcomes[i].1, &mut dropped),
                Err(_) => self.win(tree, key),
            }
            self.release(tree);
        }
        dropped
    }

    /// Lets those try again whose row was in the last flush.
    pub(super) fn release_collisions(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let is_collision = |(tree, held): (&Key, &HeldTree)| (held.why == Why::Collision).then_some(*tree);
        let collided: Vec<Key> = self.held.iter().filter_map(is_collision).collect();
        for tree in collided {
            self.release(tree);
        }
    }

    /// The Start of `execution` has landed.
    fn win(&mut self, tree: Key, execution: Key) {
        if tree == execution && !self.fates.is_empty() {
            self.fates.remove(&tree);
        }
    }

    /// A Start came to `outcome`: drops what depends on it, if it has lost.
    fn lose(&mut self, tree: Key, execution: Key, outcome: &Outcome, dropped: &mut Outcomes) {
        match outcome {
            // the execution is there and goes on: started by a run of the same parent before this one
            Outcome::Duplicate(existing) if existing.key == execution => {}
            // a root takes all that it has started with it
            _ if tree == execution => {
                if let Some(fate) = self.fates.remove(&tree) {
                    fate.lose();
                }
                let Some(held) = self.held.get_mut(&tree) else { return };
                for entry in held.queue.drain(..) {
                    self.freed += entry.meta.room as usize;
                    dropped.extend(entry.meta.lsns.iter().map(|&lsn| (lsn, Outcome::Dropped)));
                }
            }
            _ => self.drop_of(tree, execution, dropped),
        }
    }

    /// Room that has become free by Writes that were dropped.
    pub(super) fn take_freed(&mut self) -> usize {
        std::mem::take(&mut self.freed)
    }

    /// Drops what `execution` has in the queue of `tree`.
    fn drop_of(&mut self, tree: Key, execution: Key, dropped: &mut Outcomes) {
        let Some(held) = self.held.get_mut(&tree) else { return };
        held.queue.retain(|entry| {
            let is_lost = entry.write.execution() == execution;
            if is_lost {
                self.freed += entry.meta.room as usize;
                dropped.extend(entry.meta.lsns.iter().map(|&lsn| (lsn, Outcome::Dropped)));
            }
            !is_lost
        });
    }

    /// Lets the queue of `tree` go on, up to the next guarded Start. The Lsns stay held until flushed.
    fn release(&mut self, tree: Key) {
        let Some(HeldTree { mut queue, .. }) = self.held.remove(&tree) else { return };
        while let Some(entry) = queue.pop_front() {
            let entry = match self.fold(entry, Slot::default()) {
                Ok(()) => continue,
                Err(entry) => entry,
            };
            let key = entry.write.execution();
            if let Slot(Some((_, index))) = self.push(entry)
                && let Some(segment) = self.segments.back_mut()
            {
                segment.released.insert(key, index);
            }
            if let Some(held) = self.held.get_mut(&tree) {
                held.queue = queue;
                return;
            }
        }
    }

    /// Holds `tree` behind its first Write in `segment`, which is refused; nothing else is in there but the
    /// tree. A free Write has nobody to take its place: the tree goes on without it.
    pub(super) fn refuse(&mut self, segment: Segment, watermark: &Watermark) -> (Entry, Outcomes) {
        let mut entries = segment.into_entries();
        let mut dropped = Outcomes::new();
        let Some(refused) = entries.pop_front() else { unreachable!("a refused segment has a first Write") };
        let (tree, execution, lsn) = (refused.meta.tree, refused.write.execution(), refused.meta.lsns[0]);
        self.hold_back(tree, Why::Refused(lsn), entries, watermark);
        if !refused.write.is_owned() {
            if matches!(refused.write, Write::Start(_)) {
                self.lose(tree, execution, &Outcome::Dropped, &mut dropped);
            }
            self.release(tree);
        }
        (refused, dropped)
    }

    /// Holds `tree` behind its first Write in `segment`, which goes to the slow lane.
    pub(super) fn block(&mut self, segment: Segment, watermark: &Watermark) -> Entry {
        let mut entries = segment.into_entries();
        let Some(blocked) = entries.pop_front() else { unreachable!("a blocked segment has a first Write") };
        watermark.hold(&blocked.meta.lsns);
        self.hold_back(blocked.meta.tree, Why::Blocked, entries, watermark);
        blocked
    }

    fn hold_back(&mut self, tree: Key, why: Why, entries: VecDeque<Entry>, watermark: &Watermark) {
        let mut parted = HashMap::from([(tree, VecDeque::new())]);
        for entry in &entries {
            watermark.hold(&entry.meta.lsns);
        }
        for later in &mut self.segments {
            later.part(&mut parted, watermark);
        }
        let mut queue = entries;
        queue.extend(parted.remove(&tree).unwrap_or_default());
        if let Some(held) = self.held.remove(&tree) {
            queue.extend(held.queue);
        }
        self.held.insert(tree, HeldTree { why, queue });
    }

    /// The slow lane is done with `entry`: its tree goes on.
    pub(super) fn unblock(&mut self, entry: &Entry, outcome: &Outcome) -> Outcomes {
        let mut dropped = Outcomes::new();
        let tree = entry.meta.tree;
        if self.held.get(&tree).is_some_and(|held| held.why == Why::Blocked) {
            if matches!(entry.write, Write::Start(_)) {
                match outcome {
                    Outcome::Applied => self.win(tree, entry.write.execution()),
                    outcome => self.lose(tree, entry.write.execution(), outcome, &mut dropped),
                }
            }
            self.release(tree);
        }
        dropped
    }

    pub(super) fn replace(
        &mut self,
        tree: Key,
        refused: Lsn,
        execution: Key,
        write: Option<Write>,
    ) -> (Option<Arc<Placement>>, Outcomes) {
        let mut dropped = Outcomes::new();
        let held = self.held.get(&tree).filter(|held| held.why == Why::Refused(refused));
        let Some(held) = held else { return (None, dropped) };
        let ticket = held.queue.iter().rev().find_map(|entry| match &entry.write {
            Write::Transition(change) if change.key == execution => change.ticket.clone(),
            _ => None,
        });
        self.drop_of(tree, execution, &mut dropped);
        if let Some(write) = write {
            let lsn = self.next_lsn;
            self.next_lsn.0 += 1;
            self.push(Entry { write, meta: Meta { tree, lsns: smallvec![lsn], room: 0 } });
        }
        self.release(tree);
        (ticket, dropped)
    }

    /// Ends the generation: owned Writes come to `Fenced`; free ones are staged again, for
    /// [`bind`](Staging::bind) to let them go. `rest` is what had been taken and did not land. If another
    /// registration than `worker`'s is bound already, only `rest` is concerned.
    pub(super) fn fence(&mut self, worker: WorkerId, rest: Vec<Segment>, watermark: &Watermark) -> Outcomes {
        let mut outcomes = Outcomes::new();
        let mut free = Vec::new();
        let mut entries: Vec<Entry> = rest.into_iter().flat_map(Segment::into_entries).collect();
        if self.registration.is_some_and(|registration| registration.worker == worker) {
            self.generation.fetch_add(1, SeqCst);
            self.registration = None;
            // no run of this generation stages anything any more
            self.fates.clear();
            entries.extend(self.segments.drain(..).flat_map(Segment::into_entries));
            entries.extend(self.held.drain().flat_map(|(_, held)| held.queue));
        }
        for entry in entries {
            if entry.write.is_owned() {
                self.freed += entry.meta.room as usize;
                outcomes.extend(entry.meta.lsns.iter().map(|&lsn| (lsn, Outcome::Fenced)));
            } else {
                free.push(entry);
            }
        }
        for entry in free {
            outcomes.extend(self.stage_again(entry, watermark));
        }
        outcomes
    }

    /// Stages a free Write again that did not land under an earlier registration.
    pub(super) fn stage_again(&mut self, mut entry: Entry, watermark: &Watermark) -> Outcomes {
        let mut outcomes = Outcomes::new();
        if let Write::Start(start) = &mut entry.write {
            // its local run is over: whoever claims it runs it from the beginning
            outcomes.extend(entry.meta.lsns.drain(1..).map(|lsn| (lsn, Outcome::Fenced)));
            if !matches!(start.state, State::Scheduled { .. }) {
                start.state = State::Queued { armed: Vec::new() };
            }
        }
        watermark.hold(&entry.meta.lsns);
        let tree = entry.meta.tree;
        match self.held.get_mut(&tree) {
            // it comes back from the slow lane: before all that waited for it
            Some(held) if held.why == Why::Blocked => {
                held.queue.push_front(entry);
                self.release(tree);
            }
            Some(held) => held.queue.push_back(entry),
            None => {
                self.push(entry);
            }
        }
        outcomes
    }

    /// Takes everything out, for a lane that ends without the database.
    pub(super) fn clear(&mut self) -> Vec<Entry> {
        self.is_closed = true;
        let mut entries: Vec<Entry> = self.segments.drain(..).flat_map(Segment::into_entries).collect();
        entries.extend(self.held.drain().flat_map(|(_, held)| held.queue));
        entries
    }
}
