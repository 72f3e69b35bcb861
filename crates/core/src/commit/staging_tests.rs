//! Tests of the order in which staged Writes reach flushes: folds, splits, holds and fences.

use bytes::Bytes;

use super::lsn::Lsn;
use super::segment::Segment;
use super::staging::{FoldTarget, NextFlush, Staged, Staging};
use super::watermark::Watermark;
use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::path::Path;
use crate::payload::Payload;
use crate::store::{
    Checkpoint, CheckpointKind, Chunk, Outcome, Parent, Registration, Start, State, Status, Transition,
    WorkerId, Write,
};

const WORKER: WorkerId = WorkerId(1);

struct TestLane {
    staging: Staging,
    watermark: Watermark,
}

impl TestLane {
    /// Returns a lane whose flushes have at most `max_writes` Writes.
    fn new(max_writes: usize) -> Self {
        let mut staging = Staging::new(max_writes, 1 << 20);
        staging.bind(registration(WORKER));
        Self { staging, watermark: Watermark::default() }
    }

    fn try_stage(
        &mut self,
        generation: u32,
        tree: Key,
        write: Write,
        fold_target: &mut FoldTarget,
    ) -> Option<Lsn> {
        let staged = Staged { generation, tree, write, reserved: 0, fate: None };
        self.staging.stage(staged, fold_target, &self.watermark)
    }

    fn stage(&mut self, tree: Key, write: Write) -> FoldTarget {
        let mut fold_target = FoldTarget::default();
        self.try_stage(self.staging.generation(), tree, write, &mut fold_target).unwrap();
        fold_target
    }

    fn stage_folding(&mut self, tree: Key, write: Write, mut fold_target: FoldTarget) {
        self.try_stage(self.staging.generation(), tree, write, &mut fold_target).unwrap();
    }

    fn take(&mut self) -> Segment {
        match self.staging.take_flush(&self.watermark) {
            NextFlush::Segment(segment, ..) => segment,
            _ => panic!("nothing is staged"),
        }
    }

    fn has_flush(&mut self) -> bool {
        matches!(self.staging.take_flush(&self.watermark), NextFlush::Segment(..))
    }
}

fn registration(worker: WorkerId) -> Registration {
    Registration { worker, epoch: 1, now: Timestamp::from_micros(1) }
}

fn running() -> State {
    State::Running { pending_sleeps: Vec::new() }
}

fn queued() -> State {
    State::Queued { pending_sleeps: Vec::new() }
}

fn ended() -> State {
    let at = Timestamp::from_micros(2);
    State::Ended { status: Status::Completed, outcome: Payload::empty(), at }
}

fn start(key: Key, parent: Option<Key>, is_guarded: bool) -> Write {
    let parent = parent.map(|key| Parent { key, is_detached: false });
    Write::Start(Box::new(Start {
        key,
        root: parent.as_ref().map_or(key, |parent| parent.key),
        parent,
        workflow_id: None,
        workflow: "w".into(),
        app_version: None,
        placement: None,
        fingerprint: None,
        input: Payload::empty(),
        created_at: Timestamp::from_micros(1),
        deadline_at: None,
        item_count: None,
        is_guarded,
        has_begun: false,
        self_claims: false,
        dedup_id: None,
        debounce_window: None,
        run_timeout: None,
        attributes: Attributes::NONE,
        state: running(),
    }))
}

fn checkpoint(execution: Key, order: u32) -> Write {
    Write::Checkpoint(Checkpoint {
        execution,
        path: Path::root().child(order),
        run_no: 1,
        order,
        kind: CheckpointKind::Step,
        name: "s".into(),
        fingerprint: None,
        outcome: Payload::empty(),
        at: Timestamp::from_micros(1),
        duration_ms: 0,
        number: None,
    })
}

fn transition(key: Key, state: State) -> Write {
    Write::Transition(Transition { key, placement: None, state })
}

fn chunk(execution: Key, index: u32) -> Write {
    Write::Chunk(Chunk { execution, value: 1, index, bytes: Bytes::from_static(b"x"), is_unowned: true })
}

/// Returns short names of Writes: the kind, and the order, index or state.
fn names(writes: &[Write]) -> Vec<String> {
    let name = |write: &Write| match write {
        Write::Start(start) => format!("start {}", start.state.status()),
        Write::Transition(change) => format!("transition {}", change.state.status()),
        Write::Checkpoint(checkpoint) => format!("checkpoint {}", checkpoint.order),
        Write::Chunk(chunk) => format!("chunk {}", chunk.index),
        Write::Wake(_) => "wake".to_owned(),
        other => format!("{other:?}"),
    };
    writes.iter().map(name).collect()
}

/// Splits a segment of one tree until each part has one Write. Returns the names of the Writes in order.
fn split_completely(segment: Segment) -> Vec<String> {
    let mut parts = vec![segment];
    let mut order = Vec::new();
    while let Some(part) = parts.pop() {
        match part.split_first() {
            Ok((first, rest)) => parts.extend([rest, first]),
            Err(single) => order.extend(names(&single.writes)),
        }
    }
    order
}

/// The child may exist already, and its run may stage a Transition while the parent's replay stages the Start again.
#[test]
fn transition_does_not_fold_into_the_guarded_start_of_a_child() {
    let mut lane = TestLane::new(100);
    let (tree, child) = (Key::mint(0), Key::mint(0));
    lane.stage(tree, checkpoint(tree, 1));
    let flush = lane.take();
    let blocked = lane.staging.block(flush, &lane.watermark);
    lane.stage(tree, start(child, Some(tree), true));
    lane.staging.unblock(&blocked, &Outcome::Applied);
    lane.stage(tree, transition(child, ended()));
    assert_eq!(names(&lane.take().writes), ["start running"]);
    lane.staging.release_collisions();
    assert_eq!(names(&lane.take().writes), ["transition completed"]);
}

#[test]
fn later_writes_of_a_tree_stay_behind_its_blocked_write() {
    let mut lane = TestLane::new(100);
    let (tree, other) = (Key::mint(0), Key::mint(0));
    lane.stage(tree, checkpoint(tree, 1));
    lane.stage(tree, checkpoint(tree, 2));
    let flush = lane.take();
    lane.stage(tree, checkpoint(tree, 3));
    lane.stage(other, checkpoint(other, 9));
    let blocked = lane.staging.block(flush, &lane.watermark);
    lane.stage(tree, checkpoint(tree, 4));
    assert_eq!(names(&lane.take().writes), ["checkpoint 9"], "the other tree continues");
    assert!(!lane.has_flush());
    lane.staging.unblock(&blocked, &Outcome::Applied);
    assert_eq!(names(&lane.take().writes), ["checkpoint 2", "checkpoint 3", "checkpoint 4"]);
}

#[test]
fn later_writes_of_a_tree_stay_behind_its_rejected_write() {
    let mut lane = TestLane::new(100);
    let (tree, other) = (Key::mint(0), Key::mint(0));
    lane.stage(tree, checkpoint(tree, 1));
    let flush = lane.take();
    lane.stage(tree, checkpoint(tree, 2));
    lane.stage(other, checkpoint(other, 9));
    let (rejected, dropped) = lane.staging.reject(flush, &lane.watermark);
    assert!(dropped.is_empty());
    assert_eq!(names(&lane.take().writes), ["checkpoint 9"], "the other tree continues");
    assert!(!lane.has_flush(), "the replacement comes first");
    let (lsn, executions) = (rejected.meta.lsns[0], super::RejectedExecutions::default());
    lane.staging.replace_rejected(tree, lsn, &executions, Some(checkpoint(tree, 1)));
    assert_eq!(names(&lane.take().writes), ["checkpoint 1", "checkpoint 2"]);
}

#[test]
fn later_writes_of_a_tree_stay_behind_a_collision() {
    let mut lane = TestLane::new(2);
    let tree = Key::mint(0);
    lane.stage(tree, transition(tree, queued()));
    lane.stage(tree, Write::Wake(tree));
    lane.stage(tree, checkpoint(tree, 1));
    lane.stage(tree, checkpoint(tree, 2));
    assert_eq!(names(&lane.take().writes), ["transition queued"], "the Wake changes the same row");
    lane.staging.release_collisions();
    assert_eq!(names(&lane.take().writes), ["wake", "checkpoint 1"]);
    assert_eq!(names(&lane.take().writes), ["checkpoint 2"]);
}

#[test]
fn transition_folds_into_its_own_row_after_writes_have_moved() {
    let mut lane = TestLane::new(100);
    let (tree, other) = (Key::mint(0), Key::mint(0));
    lane.stage(tree, checkpoint(tree, 1));
    let flush = lane.take();
    lane.stage(tree, checkpoint(tree, 2));
    let fold_target = lane.stage(other, transition(other, running()));
    lane.stage(other, checkpoint(other, 9));
    // the first Write of the segment leaves it
    lane.staging.block(flush, &lane.watermark);
    lane.stage_folding(other, transition(other, ended()), fold_target);
    assert_eq!(names(&lane.take().writes), ["transition completed", "checkpoint 9"]);
    assert!(!lane.has_flush());
}

#[test]
fn split_keeps_a_folded_transition_behind_its_checkpoint() {
    let mut lane = TestLane::new(100);
    let tree = Key::mint(0);
    let fold_target = lane.stage(tree, transition(tree, running()));
    lane.stage(tree, checkpoint(tree, 1));
    lane.stage_folding(tree, transition(tree, ended()), fold_target);
    let flush = lane.take();
    assert_eq!(names(&flush.writes), ["transition completed", "checkpoint 1"]);
    assert_eq!(split_completely(flush), ["checkpoint 1", "transition completed"]);
}

#[test]
fn split_keeps_an_end_behind_its_start_and_checkpoint() {
    let mut lane = TestLane::new(100);
    let tree = Key::mint(0);
    let fold_target = lane.stage(tree, start(tree, None, false));
    lane.stage(tree, checkpoint(tree, 1));
    lane.stage(tree, checkpoint(tree, 2));
    lane.stage_folding(tree, transition(tree, ended()), fold_target);
    let flush = lane.take();
    assert_eq!(names(&flush.writes), ["start completed", "checkpoint 1", "checkpoint 2"]);
    let order = ["start running", "checkpoint 1", "checkpoint 2", "transition completed"];
    assert_eq!(split_completely(flush), order);
}

#[test]
fn split_does_not_divide_a_tree() {
    let mut lane = TestLane::new(100);
    let (tree, child, other) = (Key::mint(0), Key::mint(0), Key::mint(0));
    lane.stage(tree, checkpoint(tree, 1));
    lane.stage(other, checkpoint(other, 9));
    lane.stage(tree, checkpoint(child, 2));
    let Ok((first, second)) = lane.take().split() else { panic!("there are two trees") };
    assert_eq!(names(&first.writes), ["checkpoint 1", "checkpoint 2"]);
    assert_eq!(names(&second.writes), ["checkpoint 9"]);
}

#[test]
fn fence_drops_owned_writes_and_stages_others_again_in_order() {
    let mut lane = TestLane::new(2);
    let (tree, caller) = (Key::mint(0), Key::mint(0));
    lane.stage(tree, checkpoint(tree, 1));
    lane.stage(caller, chunk(caller, 0));
    lane.stage(caller, chunk(caller, 1));
    lane.stage(caller, start(caller, None, false));
    let former = lane.staging.generation();
    let flush = lane.take();
    let outcomes = lane.staging.fence(WORKER, vec![flush], &lane.watermark);
    assert_eq!(outcomes, [(Lsn(1), Outcome::Fenced)]);
    assert!(!lane.has_flush(), "no registration is bound");
    let mut fold_target = FoldTarget::default();
    assert!(lane.try_stage(former, tree, checkpoint(tree, 2), &mut fold_target).is_none());
    lane.staging.bind(registration(WorkerId(2)));
    assert_eq!(names(&lane.take().writes), ["chunk 0", "chunk 1"]);
    assert_eq!(names(&lane.take().writes), ["start queued"], "another run begins after a claim");
    assert!(!lane.has_flush());
}
