//! [`BundleTask`]: the code of a bundle, which runs the bundle's items.
//!
//! The task begins one item after the other, as far as the engine has slots. An item that ends at once costs no task of its
//! own. An item that is blocked continues in a task of its own. The outcomes of items are staged as Packs, of which one at
//! a time is under way. The bundle ends when each item has a staged outcome or is promoted.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::commit::{DurableFuture, Lsn};
use crate::failure::{Failure, UNREADABLE};
use crate::payload::Payload;
use crate::queue::queue_key;
use crate::runtime::capacity::item_slots::BundleShare;
use crate::runtime::definition::{CodeLocation, Definition};
use crate::runtime::inner::EngineInner;
use crate::runtime::run::bundle::{BundleRun, VirtualItem};
use crate::runtime::run::replay::Replay;
use crate::runtime::run::task::RunTask;
use crate::runtime::run::{Interrupt, NewRun, Run};
use crate::store::{
    Attempt, Checkpoint, DeleteChunks, ItemTemplate, Parent, Record, RequestKind, Start, State, Write,
    unpack_inputs,
};
use crate::sync::Mutex;

/// Number of recoveries from which on the items of a bundle are promoted before any of them begins: one of them seems to
/// kill its workers. Each item then has strikes of its own.
const PROMOTING_RECOVERIES: u32 = 2;
/// The time for which a poll begins items before other tasks get their turn.
const POLL_TIME: Duration = Duration::from_micros(100);
/// Number of items that a poll begins between two looks at the clock.
const ITEMS_PER_CLOCK_READ: usize = 16;

/// The recorded calls of an item.
#[derive(Default)]
struct ItemRecord {
    checkpoints: Vec<Checkpoint>,
    attempts: Vec<Attempt>,
}

/// The recorded state of a claimed bundle.
struct ClaimedItems {
    template: ItemTemplate,
    /// The indexes of the items.
    indexes: RangeInclusive<u32>,
    item_count: u64,
    /// The indexes of the items that have an outcome or a row of their own, in ascending order; `None` if a pack is damaged.
    finished: Option<Vec<u32>>,
    records: HashMap<u32, ItemRecord, foldhash::fast::RandomState>,
    /// The indexes of the items that have a row of their own.
    promoted: Vec<u32>,
    /// Whether all items get a row of their own before any of them begins.
    promotes_all: bool,
    /// The indexes of the items that a request cancels.
    cancelled: Vec<u32>,
    share: Arc<BundleShare>,
}

impl ClaimedItems {
    /// Takes the recorded state of the items from the record of a bundle; `None` for any other execution.
    fn take(engine: &Arc<EngineInner>, record: &mut Record, definition: &Definition) -> Option<Self> {
        let template = ItemTemplate::of(&record.execution)?;
        let last_index = record.execution.key.last_index()?;
        let bundle = record.bundle.take()?;
        let first_index = record.execution.key.first_index(bundle.item_count).unwrap_or_default();
        let mut records: HashMap<u32, ItemRecord, _> = HashMap::default();
        for checkpoint in record.checkpoints.drain(..) {
            let index = checkpoint.execution.item_index();
            records.entry(index.unwrap_or_default()).or_default().checkpoints.push(checkpoint);
        }
        for attempt in record.attempts.drain(..) {
            let index = attempt.execution.item_index();
            records.entry(index.unwrap_or_default()).or_default().attempts.push(attempt);
        }
        let finished = bundle.outcomes().map(|outcomes| {
            let mut finished: Vec<u32> = outcomes.iter().map(|it| it.index).collect();
            finished.extend(&bundle.promoted);
            finished.sort_unstable();
            finished
        });
        let unfinished = (bundle.item_count as usize).saturating_sub(finished.as_ref().map_or(0, Vec::len));
        let queue_key = queue_key(record.execution.placement.as_deref());
        let share = BundleShare::new(engine, queue_key, unfinished, definition.holds_thread());
        Some(Self {
            share,
            template,
            indexes: first_index..=last_index,
            item_count: bundle.item_count,
            finished,
            records,
            promoted: bundle.promoted,
            cancelled: record.requests.iter().filter_map(RequestKind::cancelled_item).collect(),
            promotes_all: bundle.has_queue_limits || record.execution.recoveries >= PROMOTING_RECOVERIES,
        })
    }

    /// Returns the unfinished items with their inputs and records, in ascending order.
    fn into_pending(mut self, packed: &Payload) -> Result<VecDeque<PendingItem>, Failure> {
        let unreadable = |reason: &str| Failure::with_kind(UNREADABLE, reason.to_owned());
        let finished =
            self.finished.take().ok_or_else(|| unreadable("the outcomes of the items are damaged"))?;
        let inputs = unpack_inputs(packed).filter(|inputs| inputs.len() as u64 == self.item_count);
        let inputs = inputs.ok_or_else(|| unreadable("the inputs of the items are damaged"))?;
        let items = self.indexes.clone().zip(inputs);
        let unfinished = items.filter(|(index, _)| finished.binary_search(index).is_err());
        Ok(unfinished
            .map(|(index, input)| PendingItem { index, input, record: self.records.remove(&index) })
            .collect())
    }

    /// Returns the Writes that delete the chunks that a disowned run has left behind, for each unfinished item.
    fn chunk_deletions(&self) -> Vec<Write> {
        let finished = self.finished.as_deref().unwrap_or_default();
        let unfinished = self.indexes.clone().filter(|it| finished.binary_search(it).is_err());
        let deletion = |index| {
            let checkpoints = self.records.get(&index).into_iter().flat_map(|record| &record.checkpoints);
            let keep: SmallVec<[u64; 4]> =
                checkpoints.filter_map(|it| it.outcome.chunk_ref().map(|chunks| chunks.value)).collect();
            Write::DeleteChunks(DeleteChunks { execution: self.template.batch.item(index), keep })
        };
        unfinished.map(deletion).collect()
    }
}

/// An item that has not begun here.
struct PendingItem {
    index: u32,
    input: Payload,
    record: Option<ItemRecord>,
}

/// A claimed bundle as the worker runs it.
pub(super) struct ClaimedBundle {
    /// The definition of the bundle, whose code is a [`BundleTask`].
    pub(super) definition: Arc<Definition>,
    /// The Writes that delete left chunks, to be durable before any item begins.
    pub(super) chunk_deletions: Vec<Write>,
}

impl ClaimedBundle {
    /// Takes the items from the record of a bundle; `None` for any other execution. `definition` is that of the items.
    pub(super) fn take(
        engine: &Arc<EngineInner>,
        record: &mut Record,
        definition: &Arc<Definition>,
    ) -> Option<Self> {
        let items = ClaimedItems::take(engine, record, definition)?;
        let chunk_deletions =
            if record.execution.recoveries > 0 { items.chunk_deletions() } else { Vec::new() };
        let (items, item_definition) = (Mutex::new(Some(items)), definition.clone());
        let body = move |run: Arc<Run>, input: &Payload| {
            let items = items.lock().take();
            let items = items.ok_or_else(|| Failure::new("the items of the bundle have begun already"))?;
            let task = BundleTask::new(run, item_definition.clone(), items, input)?;
            Ok(Box::pin(task) as crate::runtime::definition::BodyFuture)
        };
        let definition = Definition {
            name: definition.name.clone(),
            is_eager: false,
            code: CodeLocation::Task,
            time_limit_hint: definition.time_limit_hint,
            graph: None,
            body: Box::new(body),
        };
        Some(Self { definition: Arc::new(definition), chunk_deletions })
    }
}

/// The code of a bundle.
struct BundleTask {
    run: Arc<Run>,
    bundle: Arc<BundleRun>,
    /// The definition of the items.
    definition: Arc<Definition>,
    pending: VecDeque<PendingItem>,
    promotes_all: bool,
    /// Resolves when the Pack that is under way is durable.
    pack: Option<DurableFuture<Arc<Run>>>,
}

impl BundleTask {
    fn new(
        run: Arc<Run>,
        definition: Arc<Definition>,
        items: ClaimedItems,
        packed_inputs: &Payload,
    ) -> Result<Self, Failure> {
        let promotes_all = items.promotes_all;
        let bundle = BundleRun::new(&run, items.template.clone(), items.share.clone());
        bundle.note_promoted(items.promoted.iter().copied());
        items.cancelled.iter().for_each(|index| bundle.cancel_item(*index));
        let pending = items.into_pending(packed_inputs)?;
        run.engine.runs.insert_bundle(run.key, &bundle);
        Ok(Self { run, bundle, definition, pending, promotes_all, pack: None })
    }

    /// Gives all pending items rows of their own, in which they are `queued`.
    fn promote_all(&mut self) {
        self.pending.retain(|item| !self.bundle.end_if_cancelled(item.index));
        self.bundle.note_promoted(self.pending.iter().map(|item| item.index));
        for PendingItem { index, input, record } in self.pending.drain(..) {
            let queued = State::Queued { pending_sleeps: Vec::new() };
            let start = self.bundle.template.start(index, input, None, queued);
            let start = Start { has_begun: record.is_some(), ..start };
            self.run.stage(Write::Start(start.into()), 0);
        }
    }

    /// Begins pending items until the time of this poll is over or no slot is free. Returns whether the next poll can begin
    /// more.
    fn begin_items(&mut self, waker: &Waker) -> bool {
        let began_at = Instant::now();
        while !self.pending.is_empty() {
            for _ in 0..ITEMS_PER_CLOCK_READ {
                while self.pending.pop_front_if(|item| self.bundle.end_if_cancelled(item.index)).is_some() {
                    if self.pending.is_empty() {
                        self.bundle.share.note_all_begun();
                    }
                }
                if self.run.is_pausing() || self.run.engine.is_draining() || self.pending.is_empty() {
                    return false;
                }
                if !self.bundle.share.take_slot(self.pending.len() > 1, waker) {
                    return false;
                }
                if let Some(item) = self.pending.pop_front() {
                    self.begin_item(item);
                }
                if self.pending.is_empty() {
                    self.bundle.share.note_all_begun();
                }
            }
            if began_at.elapsed() > POLL_TIME {
                return !self.pending.is_empty();
            }
        }
        false
    }

    /// Begins an item, which runs until it is blocked.
    fn begin_item(&self, item: PendingItem) {
        let PendingItem { index, input, record } = item;
        let (replay, attempts) = match record {
            Some(record) => Replay::from_rows(record.checkpoints, record.attempts),
            None => (None, None),
        };
        let (engine, batch) = (&self.run.engine, self.bundle.template.batch);
        let membership = VirtualItem { bundle: self.bundle.clone(), index, input: input.clone() };
        let first =
            NewRun::for_first_run(batch.item(index), self.run.root, self.run.created_at, self.run.generation);
        let new = NewRun {
            parent: Some(Parent { key: batch, is_detached: false }),
            deadline_at: self.bundle.template.deadline(|| engine.now()),
            placement: self.bundle.template.placement.clone(),
            item: Some(Box::new(membership)),
            replay,
            attempts,
            is_replayed: true,
            ..first
        };
        let run = Run::new(engine.clone(), self.definition.clone(), new);
        if self.definition.holds_thread() {
            engine.read_ahead.note_claimed();
        }
        let mut task = RunTask::begin_executing(run.clone(), &input);
        // the waker is registered again when the task of its own polls the run
        let polled = task.poll_conclusion(&mut TaskContext::from_waker(Waker::noop()), &input);
        if polled.is_pending() {
            self.bundle.note_blocked(index, &run);
            task.detach(Payload::empty(), None::<()>);
        }
    }

    /// Stages the outcomes that no Pack contains yet. Returns the Lsn of the Pack.
    fn stage_outcomes(&self) -> Option<Lsn> {
        self.bundle.take_outcomes()?.stage(&self.run)
    }

    /// Stages a Pack of the outcomes, if no other one is under way.
    fn poll_packs(&mut self, cx: &mut TaskContext<'_>) {
        loop {
            if let Some(pack) = &mut self.pack
                && pack.poll_unpin(cx).is_pending()
            {
                return;
            }
            self.pack = self.stage_outcomes().map(|lsn| DurableFuture::new(self.run.clone(), lsn));
            if self.pack.is_none() {
                return;
            }
        }
    }
}

impl Future for BundleTask {
    type Output = Result<Payload, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.promotes_all {
            this.promote_all();
        }
        if this.begin_items(cx.waker()) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let is_idle = this.bundle.share.running_items() == 0;
        if is_idle && this.pending.is_empty() && !this.bundle.has_paused_item() {
            let _ = this.stage_outcomes();
            return Poll::Ready(Payload::encode(&()).map_err(|error| error.to_failure()));
        }
        if this.run.is_pausing() {
            this.bundle.pause_items();
        }
        if is_idle && this.run.is_pausing() {
            this.run.interrupt(Interrupt::Pause);
        } else if is_idle && (this.run.engine.is_draining() || this.bundle.has_paused_item()) {
            // the next worker reads the records of the items that have begun
            this.run.interrupt(Interrupt::Requeue);
        }
        this.poll_packs(cx);
        Poll::Pending
    }
}

impl Drop for BundleTask {
    fn drop(&mut self) {
        self.run.engine.runs.remove_bundle(self.run.key, &self.bundle);
        if let Some(outcomes) = self.bundle.close() {
            outcomes.stage(&self.run);
        }
    }
}
