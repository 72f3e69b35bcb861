//! The submission of a batch: its inputs are packed into bundles, whose Starts are staged while the next inputs are read.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::attributes::Attributes;
use crate::commit::{FoldTarget, Lane, Lsn, Staged};
use crate::error::Error;
use crate::key::{Key, MAX_BATCH_ITEMS};
use crate::payload::{INLINE_LIMIT, Payload};
use crate::queue::Placement;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::chunks::{self, ChunkTarget};
use crate::store::{
    BatchItems, CloseBatch, Detail, ExecutionId, Outcome, PackedInputs, Parent, Start, State, Status, Write,
    bundle_placement, unpack_inputs,
};

/// Maximum number of items in a bundle.
const MAX_BUNDLE_ITEMS: u32 = 1_000;
/// Number of bundles whose Starts are staged together. As many others may be under way at the same time.
const BUNDLES_PER_FLUSH: usize = 32;
/// Maximum size of the inputs of these bundles, in bytes; the last bundle may exceed it.
const BYTES_PER_FLUSH: usize = 512 * 1024;

/// Number of bundles that are staged together already while the lane is idle.
const BUNDLES_FOR_IDLE_LANE: usize = 8;

/// A value that becomes the input of an item.
pub trait PackInput {
    /// Adds the input to those of a bundle. Returns its fingerprint, or `None` for that of its bytes.
    fn pack(self, inputs: &mut PackedInputs) -> Result<Option<u64>, Error>;
}

/// An input that is encoded when it is packed.
#[derive(Debug)]
pub(crate) struct UnencodedInput<I>(pub(crate) I);

impl<I: Serialize> PackInput for UnencodedInput<I> {
    fn pack(self, inputs: &mut PackedInputs) -> Result<Option<u64>, Error> {
        inputs.push_with(|bytes| Payload::encode_to(bytes, &self.0))?;
        Ok(None)
    }
}

impl<T: PackInput> PackInput for Result<T, Error> {
    fn pack(self, inputs: &mut PackedInputs) -> Result<Option<u64>, Error> {
        self?.pack(inputs)
    }
}

/// The input of an item.
#[derive(Clone, Debug)]
pub struct BatchInput {
    /// The input as it is recorded.
    pub payload: Payload,
    /// The fingerprint of the input; `None` for the fingerprint of the payload.
    pub fingerprint: Option<u64>,
}

impl BatchInput {
    /// Returns the fingerprint of this input and of those before it, which have the fingerprint `before`; 0 for none.
    pub(crate) fn fold_fingerprint(&self, before: u64) -> u64 {
        fold_fingerprint(before, self.fingerprint.unwrap_or_else(|| self.payload.fingerprint()))
    }
}

impl PackInput for BatchInput {
    fn pack(self, inputs: &mut PackedInputs) -> Result<Option<u64>, Error> {
        inputs.push(&self.payload);
        Ok(self.fingerprint)
    }
}

fn fold_fingerprint(before: u64, fingerprint: u64) -> u64 {
    xxh3_64([before, fingerprint].map(u64::to_be_bytes).as_flattened())
}

impl From<Payload> for BatchInput {
    fn from(payload: Payload) -> Self {
        Self { payload, fingerprint: None }
    }
}

/// The values that all items of a batch have in common.
#[derive(Clone)]
pub(crate) struct BatchTemplate {
    /// The id that the caller gave.
    pub(crate) batch_id: Option<Arc<str>>,
    /// The name of the workflow of the items.
    pub(crate) workflow: Arc<str>,
    pub(crate) placement: Option<Arc<Placement>>,
    pub(crate) attributes: Attributes,
    /// The time limit of each item, from its beginning to its end.
    pub(crate) run_timeout: Option<Duration>,
}

/// A batch while its inputs are submitted.
pub(crate) struct BatchSubmission<'s> {
    engine: &'s EngineInner,
    template: &'s BatchTemplate,
    lane: &'s Lane,
    batch: Key,
    /// Whether bundles have fingerprints: the batch may be submitted again.
    is_compared: bool,
    /// Whether the batch existed before, perhaps with these bundles.
    is_continued: bool,
    /// The number of items that earlier submissions have submitted; `None` until it is read.
    known_items: Option<u64>,
    /// Whether the inputs are the same as those of all these items.
    is_same: bool,
    /// The inputs of the next bundle.
    inputs: PackedInputs,
    /// The given fingerprints of these inputs, with the positions of the inputs in the bundle.
    given_fingerprints: Vec<(u32, u64)>,
    /// The fingerprint of these inputs, which is compared if a batch with this id exists.
    fingerprint: u64,
    /// The number of items in the prepared and staged bundles.
    bundled: u64,
    /// The Starts that are ready to be staged. They are staged together, so that a flush contains all of them.
    prepared: Vec<(Staged, Option<PreparedBundle>)>,
    /// The Lsn of the batch's Start; `None` while that Start is prepared.
    start_lsn: Option<Lsn>,
    /// The staged bundles that are not known to be durable, oldest first.
    in_flight: VecDeque<(Lsn, PreparedBundle)>,
}

/// The facts about a bundle that are compared with an earlier submission.
struct PreparedBundle {
    first_item: u32,
    fingerprint: Option<u64>,
    /// The size of the packed inputs, in bytes.
    size: usize,
    inputs: Payload,
    given_fingerprints: Vec<(u32, u64)>,
}

impl Drop for BatchSubmission<'_> {
    /// Stages what is prepared, also if the caller stops waiting.
    fn drop(&mut self) {
        self.withdraw_empty_batch();
        let _ = self.stage_prepared();
    }
}

impl BatchTemplate {
    /// Returns the Start of a batch with this key. The batch is closed if the number of its items is known.
    pub(crate) fn start(&self, engine: &EngineInner, batch: Key, item_count: Option<u64>) -> Box<Start> {
        let created_at = engine.now();
        let state = match item_count {
            Some(0) => State::Ended { status: Status::Completed, outcome: Payload::empty(), at: created_at },
            _ => State::Waiting { wake_at: None, waits: Vec::new(), pending_sleeps: Vec::new() },
        };
        Box::new(Start {
            key: batch,
            root: batch,
            parent: None,
            is_guarded: self.batch_id.is_some(),
            workflow_id: self.batch_id.clone(),
            workflow: self.workflow.clone(),
            fingerprint: None,
            app_version: engine.info.app_version.clone(),
            placement: self.placement.clone(),
            dedup_id: None,
            debounce_window: None,
            input: Payload::empty(),
            created_at,
            deadline_at: None,
            run_timeout: None,
            attributes: self.attributes.clone(),
            item_count,
            has_begun: true,
            self_claims: false,
            state,
        })
    }
}

/// Returns an error if a batch cannot have this number of items.
pub(crate) fn check_count(count: u64) -> Result<(), Error> {
    if count <= MAX_BATCH_ITEMS {
        return Ok(());
    }
    let reason = format!("a batch has at most {MAX_BATCH_ITEMS} items; submit several batches");
    Err(Error::Invalid { input: "inputs", reason })
}

impl<'s> BatchSubmission<'s> {
    /// Begins the submission of a batch that does not exist yet. Stages its Start together with the first bundles.
    pub(crate) async fn begin(
        engine: &'s EngineInner,
        template: &'s BatchTemplate,
        item_count: Option<u64>,
    ) -> Self {
        let batch = Key::mint_batch(engine.shard);
        let start = template.start(engine, batch, item_count);
        let mut submission = Self::new(engine, template, batch);
        submission.is_compared = template.batch_id.is_some();
        let (lane, generation) = (submission.lane, submission.lane.generation());
        let reserved = lane.reserve(start.attributes.size() + chunks::ROW_BYTES).await;
        let staged = Staged { generation, tree: batch, write: Write::Start(start), reserved, fate: None };
        submission.prepared.push((staged, None));
        submission
    }

    /// Continues with the items of a batch that a workflow has started. If `is_continued`, an earlier run of the workflow
    /// may have submitted some of them.
    pub(crate) fn of_workflow(
        engine: &'s EngineInner,
        template: &'s BatchTemplate,
        batch: Key,
        is_continued: bool,
    ) -> Self {
        let mut submission = Self::new(engine, template, batch);
        (submission.is_compared, submission.is_continued) = (true, is_continued);
        submission
    }

    fn new(engine: &'s EngineInner, template: &'s BatchTemplate, batch: Key) -> Self {
        Self {
            engine,
            template,
            lane: engine.lane_of(batch),
            batch,
            is_compared: false,
            is_continued: false,
            known_items: None,
            is_same: false,
            inputs: PackedInputs::default(),
            given_fingerprints: Vec::new(),
            fingerprint: 0,
            bundled: 0,
            prepared: Vec::new(),
            start_lsn: None,
            in_flight: VecDeque::new(),
        }
    }

    /// Returns the key of the batch.
    pub(crate) fn batch(&self) -> Key {
        self.batch
    }

    /// Waits until the batch's Start is durable, and handles its outcome. Returns whether the batch is new.
    pub(crate) async fn resolve_start(&mut self) -> Result<bool, Error> {
        self.stage_prepared()?;
        let Some(lsn) = self.start_lsn else { return Err(self.engine.dropped_write_error()) };
        match self.lane.wait_durable(lsn).await {
            Outcome::Applied => Ok(true),
            Outcome::Duplicate(existing) if existing.key == self.batch => Ok(true),
            Outcome::Duplicate(existing) => {
                let workflow = &self.template.workflow;
                if !existing.key.is_batch() {
                    return Err(self.conflict("it belongs to an execution, not to a batch".to_owned()));
                }
                if existing.workflow != *workflow {
                    let reason = format!(
                        "it belongs to a batch of workflow {:?}, not {workflow:?}",
                        existing.workflow
                    );
                    return Err(self.conflict(reason));
                }
                self.batch = existing.key;
                self.is_continued = true;
                Ok(false)
            }
            outcome => Err(self.engine.unapplied_error("batch", outcome)),
        }
    }

    fn conflict(&self, reason: String) -> Error {
        let workflow_id = self.batch.workflow_id(self.template.batch_id.as_deref());
        Error::Conflict { workflow_id, reason }
    }

    /// Submits all inputs, and waits until their bundles are durable, also after an error. Returns the number of inputs.
    pub(crate) async fn submit_inputs(
        &mut self,
        inputs: Pin<&mut impl Stream<Item: PackInput>>,
    ) -> Result<u64, Error> {
        let staged = self.stage_inputs(inputs).await;
        if staged.is_err() {
            self.withdraw_empty_batch();
        }
        let staged = staged.and(self.stage_prepared());
        let confirmed = self.confirm_all().await;
        staged.and(confirmed).map(|()| self.bundled)
    }

    /// Withdraws the Start of the batch if nothing is staged yet, and there is no bundle.
    fn withdraw_empty_batch(&mut self) {
        if self.bundled == 0 && self.start_lsn.is_none() {
            for (staged, _) in self.prepared.drain(..) {
                self.lane.release(staged.reserved);
            }
        }
    }

    /// Waits until all staged bundles are durable, also after an error. Returns the first error.
    async fn confirm_all(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        while let Some(oldest) = self.in_flight.pop_front() {
            let confirmed = self.confirm(oldest).await;
            result = result.and(confirmed);
        }
        result
    }

    /// Returns the number of items that earlier submissions of a continued batch have submitted.
    async fn known_items(&mut self) -> Result<u64, Error> {
        if let Some(known) = self.known_items {
            return Ok(known);
        }
        let known = self.read_items().await?.counts().submitted;
        self.known_items = Some(known);
        Ok(known)
    }

    /// Reads the numbers of the batch's items.
    async fn read_items(&self) -> Result<BatchItems, Error> {
        let (engine, batch) = (self.engine, self.batch);
        engine.query_with_retry(async || Ok(engine.store.batch_items(batch).await?)).await
    }

    /// Waits until the inputs are known to be the same as those of earlier submissions, before the first bundle behind
    /// them is staged. So a submission with other inputs adds nothing to the batch.
    async fn compare_known_items(&mut self) -> Result<(), Error> {
        if self.is_continued && !self.is_same && self.bundled >= self.known_items().await? {
            self.stage_prepared()?;
            self.confirm_all().await?;
            self.is_same = true;
        }
        Ok(())
    }

    /// Stages the bundles of all inputs.
    async fn stage_inputs(
        &mut self,
        mut inputs: Pin<&mut impl Stream<Item: PackInput>>,
    ) -> Result<(), Error> {
        while let Some(given) = self.pack_next(&mut inputs).await? {
            if self.inputs.count() > 1 && self.inputs.len() > INLINE_LIMIT {
                let last = self.inputs.take_last();
                self.stage_bundle().await?;
                self.inputs = last;
            }
            if self.is_compared {
                let fingerprint = given.unwrap_or_else(|| Payload::fingerprint_of(self.inputs.last()));
                self.given_fingerprints.extend(given.map(|given| (self.inputs.count() - 1, given)));
                self.fingerprint = fold_fingerprint(self.fingerprint, fingerprint);
            }
            // at once, so that the items are durable also if no further input can be read
            if self.inputs.count() == MAX_BUNDLE_ITEMS {
                self.stage_bundle().await?;
            }
        }
        if self.inputs.count() > 0 {
            self.stage_bundle().await?;
        }
        Ok(())
    }

    /// Packs the next input. Returns its given fingerprint, if it has one; `None` after the last input. While there is no
    /// input yet, the prepared bundles are staged and flushed.
    async fn pack_next<S: Stream<Item: PackInput>>(
        &mut self,
        inputs: &mut Pin<&mut S>,
    ) -> Result<Option<Option<u64>>, Error> {
        poll_fn(|cx| match inputs.poll_next_unpin(cx) {
            Poll::Ready(Some(input)) => Poll::Ready(self.pack(input).map(Some)),
            Poll::Ready(None) => Poll::Ready(Ok(None)),
            // an empty batch is not staged: its first input may be an error
            Poll::Pending if self.bundled == 0 => Poll::Pending,
            Poll::Pending => match self.stage_prepared() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        })
        .await
    }

    fn pack(&mut self, input: impl PackInput) -> Result<Option<u64>, Error> {
        let index = self.bundled + u64::from(self.inputs.count());
        check_count(index + 1)?;
        let given = input.pack(&mut self.inputs).map_err(|error| name_item(error, index))?;
        let (size, limit) = (self.inputs.last().len(), self.engine.options.value_limit);
        if size > limit {
            let value = format!("the input of item {index} of the batch");
            return Err(Error::TooLarge { value, size, limit });
        }
        Ok(given)
    }

    /// Stages what is prepared, so that one flush contains it.
    fn stage_prepared(&mut self) -> Result<(), Error> {
        if self.prepared.is_empty() {
            return Ok(());
        }
        let is_new = self.lane.begin_burst();
        let mut is_staged = true;
        for (staged, bundle) in self.prepared.drain(..) {
            match (self.lane.stage(staged, &mut FoldTarget::default()), bundle) {
                (Some(lsn), Some(bundle)) => {
                    crate::crash_point!("bundle staged");
                    self.in_flight.push_back((lsn, bundle));
                }
                (Some(lsn), None) => self.start_lsn = Some(lsn),
                (None, _) => is_staged = false,
            }
        }
        if is_new {
            self.lane.end_burst(std::thread::current().id());
        }
        if is_staged { Ok(()) } else { Err(self.engine.dropped_write_error()) }
    }

    /// Prepares the Start of the next bundle. Waits until not too many bundles are under way.
    async fn stage_bundle(&mut self) -> Result<(), Error> {
        self.compare_known_items().await?;
        let engine = self.engine;
        let count = self.inputs.count();
        let first_item = self.bundled as u32;
        let bundle = self.batch.bundle(first_item + (count - 1));
        let packed = self.inputs.take();
        let fingerprint = self.is_compared.then_some(std::mem::take(&mut self.fingerprint));
        let (lane, generation) = (self.lane, self.lane.generation());
        let is_inline = packed.len() <= INLINE_LIMIT;
        let reserved = if is_inline { lane.try_reserve(packed.len() + chunks::ROW_BYTES) } else { 0 };
        let (input, reserved) = if reserved > 0 {
            (packed.clone(), reserved)
        } else {
            // a task that waits for budget must not hold budget
            self.stage_prepared()?;
            let place = ChunkTarget {
                lane,
                generation,
                execution: bundle,
                tree: self.batch,
                is_unowned: true,
                fate: None,
                run: None,
            };
            chunks::store(place, packed.clone(), 0).await
        };
        let start = Box::new(Start {
            key: bundle,
            root: bundle,
            parent: Some(Parent { key: self.batch, is_detached: false }),
            workflow_id: None,
            workflow: self.template.workflow.clone(),
            fingerprint,
            app_version: engine.info.app_version.clone(),
            placement: Some(Arc::new(bundle_placement(self.batch, self.template.placement.as_deref()))),
            dedup_id: None,
            debounce_window: None,
            input,
            created_at: engine.now(),
            deadline_at: None,
            run_timeout: self.template.run_timeout,
            attributes: Attributes::NONE,
            item_count: Some(u64::from(count)),
            is_guarded: self.is_continued,
            has_begun: false,
            self_claims: false,
            state: State::Queued { pending_sleeps: Vec::new() },
        });
        let staged =
            Staged { generation, tree: self.batch, write: Write::Start(start), reserved, fate: None };
        self.bundled += u64::from(count);
        let size = packed.len();
        let inputs = if fingerprint.is_some() { packed } else { Payload::empty() };
        let given_fingerprints = std::mem::take(&mut self.given_fingerprints);
        let bundle = PreparedBundle { first_item, fingerprint, size, inputs, given_fingerprints };
        self.prepared.push((staged, Some(bundle)));
        let prepared = || self.prepared.iter().filter_map(|(_, bundle)| bundle.as_ref());
        // an idle lane writes these bundles while the next inputs are packed
        let is_awaited = self.prepared.len() >= BUNDLES_FOR_IDLE_LANE && self.lane.is_committer_idle();
        if is_awaited || fills_flush(prepared()) {
            self.stage_prepared()?;
            while fills_flush(self.in_flight.iter().map(|(_, bundle)| bundle).skip(1))
                && let Some(oldest) = self.in_flight.pop_front()
            {
                self.confirm(oldest).await?;
            }
        }
        // a conflict ends the call before further inputs are read
        while let Some(settled) = self.in_flight.pop_front_if(|(lsn, _)| self.lane.is_settled(*lsn)) {
            self.confirm(settled).await?;
        }
        Ok(())
    }

    /// Waits until a bundle is durable. If the batch existed before, compares the bundle with that of the earlier
    /// submission.
    async fn confirm(&self, (lsn, bundle): (Lsn, PreparedBundle)) -> Result<(), Error> {
        match self.lane.wait_durable(lsn).await {
            Outcome::Applied => Ok(()),
            Outcome::Duplicate(existing) if existing.fingerprint == bundle.fingerprint => Ok(()),
            Outcome::Duplicate(_) | Outcome::NotFound => Err(self.difference(&bundle).await?),
            outcome => Err(self.engine.unapplied_error("inputs", outcome)),
        }
    }

    /// Returns the error for a bundle that an earlier submission of the batch has submitted with other inputs, or that
    /// does not fit behind the bundles of that submission.
    async fn difference(&self, bundle: &PreparedBundle) -> Result<Error, Error> {
        let engine = self.engine;
        let batch = engine.load(ExecutionId::Key(self.batch), Detail::Outcome).await?;
        let status = batch.map(|record| record.execution.status);
        if status == Some(Status::Cancelled) {
            return Ok(self.conflict("it belongs to a batch that was cancelled".to_owned()));
        }
        let inputs = unpack_inputs(&bundle.inputs).unwrap_or_default();
        let stored = engine.store.bundles(self.batch, bundle.first_item, 1).await?;
        let Some(stored) = stored.first() else {
            return Ok(self.conflict(format!(
                "the batch was submitted before with {} items; the inputs have more",
                bundle.first_item
            )));
        };
        let record = engine.load(ExecutionId::Key(*stored), Detail::Full).await?;
        let Some(record) = record else { return Ok(self.conflict("its bundle has been deleted".to_owned())) };
        let packed = chunks::fetch(engine, *stored, record.execution.input).await?;
        let recorded = unpack_inputs(&packed).unwrap_or_default();
        let first_recorded = stored.first_index(recorded.len() as u64).unwrap_or_default();
        let recorded = recorded.iter().skip(bundle.first_item.saturating_sub(first_recorded) as usize);
        let given = &bundle.given_fingerprints;
        let is_same = |position: usize, input: &Payload, recorded: &Payload| {
            let found = given.binary_search_by_key(&(position as u32), |(position, _)| *position);
            let given = found.ok().map(|found| given[found].1);
            let recorded = recorded.fingerprint();
            input.fingerprint() == recorded || given == Some(recorded)
        };
        let recorded_count = recorded.len();
        let pairs = inputs.iter().zip(recorded).enumerate();
        let same = pairs.take_while(|&(i, (input, recorded))| is_same(i, input, recorded)).count();
        let index = u64::from(bundle.first_item) + same as u64;
        let difference = if same == inputs.len() && same < recorded_count {
            format!("with more items than {index}; the inputs have no more")
        } else if same == recorded_count && same < inputs.len() {
            format!("with {index} items; the inputs have more")
        } else {
            format!("with other inputs; item {index} is the first that differs")
        };
        Ok(self.conflict(format!("it belongs to a batch that was submitted {difference}")))
    }

    /// Closes the batch with this number of items.
    pub(crate) async fn close(&mut self, item_count: u64) -> Result<(), Error> {
        let engine = self.engine;
        let close = Write::CloseBatch(CloseBatch { batch: self.batch, item_count });
        let staged = engine.stage_unowned(self.batch, close);
        let Some((lane, lsn)) = staged else { return Err(engine.dropped_write_error()) };
        match lane.wait_durable(lsn).await {
            Outcome::Applied => {
                crate::crash_point!("batch closed");
                // the items may have ended before
                engine.stage_unowned(self.batch, Write::Wake(self.batch));
                Ok(())
            }
            Outcome::NotFound => Err(self.other_count(item_count).await?),
            _ => Err(engine.dropped_write_error()),
        }
    }

    /// Returns the error for a batch that cannot be closed with this number of items.
    async fn other_count(&self, item_count: u64) -> Result<Error, Error> {
        let items = self.read_items().await?;
        let known = items.closed_with.unwrap_or(0).max(items.counts().submitted);
        let reason = if known == item_count {
            "it belongs to a batch that was cancelled".to_owned()
        } else {
            format!(
                "it belongs to a batch that was submitted with {known} items; the inputs have {item_count}"
            )
        };
        Ok(self.conflict(reason))
    }
}

/// Whether these bundles are enough for a flush.
fn fills_flush<'b>(bundles: impl Iterator<Item = &'b PreparedBundle>) -> bool {
    let (count, size) = bundles.fold((0, 0), |(count, size), bundle| (count + 1, size + bundle.size));
    count >= BUNDLES_PER_FLUSH || size >= BYTES_PER_FLUSH
}

/// Returns the error of an input with the index of its item.
pub(crate) fn name_item(error: Error, index: u64) -> Error {
    match error {
        Error::Encode { type_name, reason } => {
            Error::Encode { type_name, reason: format!("item {index} of the batch: {reason}") }
        }
        error => error,
    }
}
