//! [`Fate`]: whether a tree may continue, if its code runs before the outcome of the root's Start is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Fate of an execution tree, shared by all of its runs. The fate fails together with the root's Start, under
/// the lane's lock. After that, the lane accepts no Write of the tree.
#[derive(Clone, Default)]
pub(crate) struct Fate(Arc<FateInner>);

#[derive(Default)]
struct FateInner {
    has_failed: AtomicBool,
    has_children: AtomicBool,
}

impl Fate {
    /// Whether the root's Start has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.has_failed.load(SeqCst)
    }

    pub(super) fn fail(&self) {
        self.0.has_failed.store(true, SeqCst);
    }

    /// Notes that a run other than the root's shares this fate.
    pub(crate) fn add_child(&self) {
        self.0.has_children.store(true, SeqCst);
    }

    /// Whether runs other than the root's share this fate.
    pub(crate) fn has_children(&self) -> bool {
        self.0.has_children.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::super::staging::{FoldTarget, NextFlush, Staged, Staging};
    use super::super::watermark::Watermark;
    use super::*;
    use crate::attributes::Attributes;
    use crate::clock::Timestamp;
    use crate::key::Key;
    use crate::payload::Payload;
    use crate::store::Registration;
    use crate::store::Status;
    use crate::store::{DeleteChunks, ExistingExecution, Outcome, Start, State, WorkerId, Write};

    fn start(key: Key) -> Write {
        let (workflow_id, is_guarded) = (Some("id".into()), true);
        let (created_at, state) = (Timestamp::from_micros(1), State::Running { pending_sleeps: Vec::new() });
        let (parent, fingerprint, deadline_at) = (None, None, None);
        let (workflow, input) = ("w".into(), Payload::empty());
        Write::Start(Box::new(Start {
            key,
            root: key,
            parent,
            workflow_id,
            workflow,
            app_version: None,
            placement: None,
            fingerprint,
            input,
            created_at,
            deadline_at,
            item_count: None,
            is_guarded,
            has_begun: false,
            self_claims: false,
            dedup_id: None,
            debounce_window: None,
            run_timeout: None,
            attributes: Attributes::NONE,
            state,
        }))
    }

    #[test]
    fn tree_stages_nothing_after_its_start_has_failed() {
        let (tree, other) = (Key::mint(0), Key::mint(0));
        let (mut staging, watermark) = (Staging::new(100, 1 << 20), Watermark::default());
        staging.bind(Registration { worker: WorkerId(1), epoch: 1, now: Timestamp::from_micros(1) });
        let fates = [Fate::default(), Fate::default()];
        let stage = |staging: &mut Staging, tree: Key, write: Write, fate: &Fate| {
            let staged = Staged { generation: 0, tree, write, reserved: 0, fate: Some(fate.clone()) };
            staging.stage(staged, &mut FoldTarget::default(), &watermark)
        };
        let delete_chunks =
            |tree| Write::DeleteChunks(DeleteChunks { execution: tree, keep: [].into_iter().collect() });
        for (tree, fate) in [tree, other].into_iter().zip(&fates) {
            assert!(stage(&mut staging, tree, start(tree), fate).is_some());
        }
        let NextFlush::Segment(segment, ..) = staging.take_flush(&watermark) else {
            panic!("two Starts are staged")
        };
        for (tree, fate) in [tree, other].into_iter().zip(&fates) {
            assert!(stage(&mut staging, tree, delete_chunks(tree), fate).is_some(), "held behind its Start");
        }
        let existing = ExistingExecution {
            given_id: None,
            key: Key::mint(0),
            workflow: "w".into(),
            fingerprint: None,
            parent: None,
            status: Status::Completed,
        };
        let dropped = staging.settle(&segment, &[(0, Outcome::Duplicate(existing.into()))]);
        assert_eq!(dropped.len(), 1);
        assert!(fates[0].has_failed() && !fates[1].has_failed());
        assert!(stage(&mut staging, tree, delete_chunks(tree), &fates[0]).is_none());
        assert!(stage(&mut staging, other, delete_chunks(other), &fates[1]).is_some());
    }
}
