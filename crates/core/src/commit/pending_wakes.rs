//! [`PendingWakes`]: the Wakes that no flush has taken yet.

use super::lsn::Lsn;
use super::segment::Entry;
use crate::key::KeyMap;
use crate::store::Write;

/// The Wakes of a lane that are staged or held, by execution. A later Wake of the same execution needs no Write of its
/// own, because the flush of the earlier one begins later. A Wake in a flush under way is not pending: its statement
/// may have looked for ended children already.
#[derive(Default)]
pub(super) struct PendingWakes(KeyMap<Lsn>);

impl PendingWakes {
    /// Returns the Lsn of the pending Wake that has the same effect as `write`.
    pub(super) fn find(&self, write: &Write) -> Option<Lsn> {
        match write {
            Write::Wake(key) => self.0.get(key).copied(),
            _ => None,
        }
    }

    /// Notes that a Write is staged or held.
    pub(super) fn add(&mut self, write: &Write, lsn: Lsn) {
        if let Write::Wake(key) = write {
            self.0.entry(*key).or_insert(lsn);
        }
    }

    /// Notes that a flush takes `writes`.
    pub(super) fn remove_taken(&mut self, writes: &[Write]) {
        if self.0.is_empty() {
            return;
        }
        for write in writes {
            self.remove(write);
        }
    }

    /// Notes that a Write is dropped.
    pub(super) fn remove_dropped(&mut self, entry: &Entry) {
        self.remove(&entry.write);
    }

    fn remove(&mut self, write: &Write) {
        if let Write::Wake(key) = write {
            // another Wake of the execution may still be pending; then the next one only gets a Write of its own
            self.0.remove(key);
        }
    }

    /// Notes that all staged and held Writes were taken out.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::Segment;
    use super::super::staging::{FoldTarget, NextFlush, Staged, Staging};
    use super::super::watermark::Watermark;
    use super::*;
    use crate::clock::Timestamp;
    use crate::key::Key;
    use crate::store::{DeleteChunks, Registration, State, Transition, WorkerId};

    const WORKER: WorkerId = WorkerId(1);

    fn registration(worker: WorkerId) -> Registration {
        Registration { worker, epoch: 1, now: Timestamp::from_micros(1) }
    }

    fn bound() -> (Staging, Watermark) {
        let mut staging = Staging::new(100, 1 << 20);
        staging.bind(registration(WORKER));
        (staging, Watermark::default())
    }

    fn stage(staging: &mut Staging, watermark: &Watermark, tree: Key, write: Write) -> Lsn {
        let staged = Staged { generation: staging.generation(), tree, write, reserved: 0, fate: None };
        staging.stage(staged, &mut FoldTarget::default(), watermark).unwrap()
    }

    fn take(staging: &mut Staging, watermark: &Watermark) -> Segment {
        match staging.take_flush(watermark) {
            NextFlush::Segment(segment, ..) => segment,
            _ => panic!("nothing is staged"),
        }
    }

    fn requeue(key: Key) -> Write {
        Write::Transition(Transition {
            key,
            placement: None,
            state: State::Queued { pending_sleeps: Vec::new() },
        })
    }

    #[test]
    fn wakes_of_an_execution_share_a_write_until_a_flush_takes_it() {
        let (mut staging, watermark) = bound();
        let (tree, parent, other) = (Key::mint(0), Key::mint(0), Key::mint(0));
        let first = stage(&mut staging, &watermark, tree, Write::Wake(parent));
        assert_eq!(stage(&mut staging, &watermark, tree, Write::Wake(parent)), first);
        assert_eq!(
            stage(&mut staging, &watermark, Key::mint(0), Write::Wake(parent)),
            first,
            "of another tree"
        );
        assert_ne!(stage(&mut staging, &watermark, tree, Write::Wake(other)), first);
        assert_eq!(take(&mut staging, &watermark).writes.len(), 2);
        assert_ne!(
            stage(&mut staging, &watermark, tree, Write::Wake(parent)),
            first,
            "the first one may be too early"
        );
        assert_eq!(take(&mut staging, &watermark).writes.len(), 1);
    }

    #[test]
    fn budget_of_a_shared_wake_is_released() {
        let (mut staging, watermark) = bound();
        let (tree, parent) = (Key::mint(0), Key::mint(0));
        let mut stage_reserved = |reserved| {
            let (generation, write) = (staging.generation(), Write::Wake(parent));
            let staged = Staged { generation, tree, write, reserved, fate: None };
            staging.stage(staged, &mut FoldTarget::default(), &watermark).unwrap();
            staging.take_freed()
        };
        assert_eq!([stage_reserved(10), stage_reserved(20), stage_reserved(30)], [0, 20, 30]);
        assert_eq!(take(&mut staging, &watermark).metas[0].reserved, 10);
    }

    #[test]
    fn held_wake_is_shared() {
        let (mut staging, watermark) = bound();
        let (tree, parent) = (Key::mint(0), Key::mint(0));
        stage(&mut staging, &watermark, tree, requeue(parent));
        let wake = stage(&mut staging, &watermark, tree, Write::Wake(parent));
        let flush = take(&mut staging, &watermark);
        assert_eq!(
            (flush.writes.len(), staging.counts()),
            (1, (0, 1)),
            "the Wake is held: the flush changes its row"
        );
        assert_eq!(stage(&mut staging, &watermark, tree, Write::Wake(parent)), wake);
        staging.release_collisions();
        assert_eq!(stage(&mut staging, &watermark, tree, Write::Wake(parent)), wake, "it is staged again");
        assert_eq!(take(&mut staging, &watermark).writes.len(), 1);
        assert_ne!(stage(&mut staging, &watermark, tree, Write::Wake(parent)), wake);
    }

    #[test]
    fn wake_behind_a_blocked_write_is_shared() {
        let (mut staging, watermark) = bound();
        let (tree, parent) = (Key::mint(0), Key::mint(0));
        let chunks = DeleteChunks { execution: tree, keep: [].into_iter().collect() };
        stage(&mut staging, &watermark, tree, Write::DeleteChunks(chunks));
        let wake = stage(&mut staging, &watermark, tree, Write::Wake(parent));
        let flush = take(&mut staging, &watermark);
        staging.block(flush, &watermark);
        assert_eq!(stage(&mut staging, &watermark, tree, Write::Wake(parent)), wake);
        assert_eq!(staging.counts(), (0, 1));
    }

    #[test]
    fn fenced_wake_is_staged_again_once() {
        let (mut staging, watermark) = bound();
        let (tree, parent) = (Key::mint(0), Key::mint(0));
        stage(&mut staging, &watermark, tree, Write::Wake(parent));
        let flush = take(&mut staging, &watermark);
        staging.fence(WORKER, vec![flush], &watermark);
        stage(&mut staging, &watermark, tree, Write::Wake(parent));
        assert_eq!(staging.counts(), (1, 0));
        staging.bind(registration(WorkerId(2)));
        assert_eq!(take(&mut staging, &watermark).writes.len(), 1);
    }
}
